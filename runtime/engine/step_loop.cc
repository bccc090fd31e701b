#include "runtime/engine/step_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

SchedulerConfig scheduler_config(const EngineConfig& config, const StepLimits& limits,
                                 int microbatches) {
  SchedulerConfig result;
  result.max_running_sequences = config.max_running_sequences;
  result.microbatches = microbatches;
  result.max_rows =
      config.max_rows > 0 ? std::min(config.max_rows, limits.max_rows) : limits.max_rows;
  result.max_step_sequences = limits.max_sequences;
  result.max_logit_rows = limits.max_logit_rows;
  result.prefill_chunk = std::min(config.prefill_chunk, result.max_rows);
  result.prefill_reserve = std::min(config.prefill_reserve, result.prefill_chunk);
  result.max_preemptions = config.max_preemptions;
  result.queue_timeout = config.queue_timeout;
  result.reader_timeout = config.reader_timeout;
  result.parking_retry = config.parking_retry;
  return result;
}

void sleep_on_waker(kernels::Waker& waker, absl::Time until) { waker.wait_until(until); }

}  // namespace

StepLoop::Microbatch::Microbatch(std::unique_ptr<StepModel> step_model, int block_size)
    : model(std::move(step_model)), builder(model->limits(), block_size) {
  const auto sequences = static_cast<size_t>(model->limits().max_sequences);
  plan.slices.reserve(sequences);
  plan.copies.reserve(sequences);
}

StepLoop::StepLoop(const EngineConfig& config, std::vector<std::unique_ptr<StepModel>> models,
                   const KvGeometry& kv, const Speculation& speculation, Inbox* inbox,
                   StatusBoard* board, kernels::Waker* waker, StepSleep sleep)
    : config_(config),
      kv_(kv),
      inbox_(inbox),
      board_(board),
      waker_(waker),
      sleep_(sleep ? std::move(sleep) : &sleep_on_waker),
      blocks_(kv.num_blocks, kv.block_size),
      scheduler_(scheduler_config(config, models[0]->limits(), static_cast<int>(models.size())),
                 &blocks_),
      overlap_(models.size()),
      verify_scratch_(models[0]->vocab()),
      eos_tokens_(speculation.eos_tokens),
      drafts_(speculation.drafts),
      clock_(speculation.clock ? speculation.clock : &absl::Now),
      depth_control_({.max_depth = config.max_draft_depth,
                      .max_sequences = models[0]->limits().max_sequences,
                      .max_rows = models[0]->limits().max_rows}) {
  microbatches_.reserve(models.size());
  for (auto& model : models) microbatches_.emplace_back(std::move(model), kv.block_size);
  started_.reserve(static_cast<size_t>(config.max_running_sequences));
  const auto sequences = static_cast<size_t>(microbatches_[0].model->limits().max_sequences);
  asks_.reserve(sequences);
  asking_.reserve(sequences);
  depths_.reserve(sequences);
  draft_tokens_.reserve(kMaxDraftDepth);
  rows_.reserve(kMaxDraftDepth + 1);
  plan_expert_demand();
}

// Only for layers with equal numbers of experts, which all families have.
void StepLoop::plan_expert_demand() {
  const ExpertUse* use = microbatches_[0].model->expert_use();
  if (use == nullptr || config_.max_draft_depth == 0) return;
  const size_t experts = use->rows()[0].size();
  for (const std::vector<int64_t>& layer : use->rows()) {
    if (layer.size() != experts) return;
  }
  layer_counts_.resize(experts);
  expert_demand_.emplace(use->layers(), static_cast<int>(experts),
                         microbatches_[0].model->limits().max_rows);
}

absl::Status StepLoop::warm_up() {
  const int block = blocks_.allocate();
  CHECK(block >= 0);
  absl::Status status;
  for (Microbatch& microbatch : microbatches_) {
    status = warm_up_one(microbatch.model.get(), block);
    if (!status.ok()) break;
  }
  blocks_.release(block);
  return status;
}

absl::Status StepLoop::warm_up_one(StepModel* model, int block) {
  const absl::Time deadline = absl::Now() + config_.warm_up_timeout;
  StepBatch batch{.tokens = {0},
                  .positions = {0},
                  .row_sequence = {0},
                  .slots = {int64_t{block} * kv_.block_size},
                  .block_tables = {block},
                  .sequences = 1,
                  .max_blocks = 1,
                  .logit_rows = {0}};
  RETURN_IF_ERROR(run_to_end(model, batch, deadline));
  while (!model->parked_rows().empty()) {
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the warm-up step needs experts that nobody has held for ",
                       absl::FormatDuration(config_.warm_up_timeout)));
    }
    sleep_(*waker_, std::min(deadline, absl::Now() + config_.parking_retry));
    RETURN_IF_ERROR(run_to_end(model, batch, deadline));
  }
  if (usable_logits(model->logits(0))) return absl::OkStatus();
  return absl::InternalError("the warm-up step gave non-finite logits for token 0");
}

absl::Status StepLoop::run_to_end(StepModel* model, const StepBatch& batch, absl::Time deadline) {
  RETURN_IF_ERROR(model->begin(batch, waker_));
  while (true) {
    ASSIGN_OR_RETURN(const StepModel::Progress progress, model->advance());
    if (progress == StepModel::Progress::kDone) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the warm-up step did not end within ", absl::FormatDuration(config_.warm_up_timeout)));
    }
    sleep_(*waker_, std::min(deadline, absl::Now() + absl::Seconds(1)));
  }
}

bool StepLoop::turn(absl::Time now) {
  last_turn_ = now;
  notice_cluster_change();
  bool moved = take_arrivals();
  moved |= end_cancelled_and_late(now);
  refresh_rooms();
  admit(now);
  for (Microbatch& microbatch : microbatches_) {
    if (!microbatch.busy) moved |= start_step(&microbatch, now);
  }
  for (Microbatch& microbatch : microbatches_) {
    if (microbatch.busy) moved |= drive_step(&microbatch);
  }
  forget_done();
  publish(now);
  return moved;
}

absl::Time StepLoop::next_wake(absl::Time now) const {
  // Wakes come from submissions, readers and models; the bound serves the watchdog.
  const absl::Duration longest = std::min(absl::Seconds(1), config_.stall_limit / 4);
  // A retry that fell due after the last turn looked is not lost: the sleep ends at once.
  return std::min({now + longest, scheduler_.next_expiry(), scheduler_.next_retry(last_turn_)});
}

void StepLoop::notice_cluster_change() {
  uint64_t version = 0;
  for (const Microbatch& microbatch : microbatches_) version += microbatch.model->cluster_version();
  if (version == cluster_version_) return;
  cluster_version_ = version;
  scheduler_.cluster_changed();
}

bool StepLoop::take_arrivals() {
  inbox_->take(&arrivals_);
  if (arrivals_.empty()) return false;
  for (auto& request : arrivals_) {
    scheduler_.enqueue(request.get());
    speculating_ += request->speculates;
    active_.push_back(std::move(request));
  }
  arrivals_.clear();
  return true;
}

bool StepLoop::end_cancelled_and_late(absl::Time now) {
  bool moved = false;
  for (const auto& request : active_) {
    if (request->ended == static_cast<int>(request->owned.size())) continue;
    if (!request->stream->cancelled()) continue;
    end_request(request.get(), FinishReason::kCancelled,
                absl::CancelledError("the client cancelled the request"));
    moved = true;
  }
  expired_.clear();
  scheduler_.find_expired(now, &expired_);
  for (const Expiry& expiry : expired_) {
    auto* request = static_cast<ActiveRequest*>(expiry.request);
    if (request->ended == static_cast<int>(request->owned.size())) continue;
    moved = true;
    switch (expiry.kind) {
      case ExpiryKind::kDeadline:
        end_request(request, FinishReason::kError,
                    absl::DeadlineExceededError("the request's deadline has passed"));
        break;
      case ExpiryKind::kQueueTimeout:
        end_request(request, FinishReason::kError,
                    absl::DeadlineExceededError(absl::StrCat(
                        "the request waited in the queue for ",
                        absl::FormatDuration(config_.queue_timeout), " and was never started")));
        break;
      case ExpiryKind::kReaderTimeout:
        end_request(request, FinishReason::kCancelled,
                    absl::CancelledError(absl::StrCat("the client read nothing for ",
                                                      absl::FormatDuration(config_.reader_timeout),
                                                      " while its stream was full")));
        break;
    }
  }
  return moved;
}

void StepLoop::refresh_rooms() {
  for (const auto& request : active_) {
    request->room = request->stream->room(request->events_in_flight + request->owned.size());
  }
}

void StepLoop::admit(absl::Time now) {
  started_.clear();
  scheduler_.admit(now, &started_);
  for (ScheduledRequest* started : started_) {
    auto* request = static_cast<ActiveRequest*>(started);
    request->started_at = now;
    counts_.prompt_tokens += static_cast<int64_t>(request->asked.prompt.size());
    inbox_->left_queue(&request->ticket);
    if (!request->speculates) continue;
    for (const auto& sequence : request->owned) {
      SequenceSpeculation& speculation = *sequence->speculation;
      speculation.want = depth_control_.first_want(speculation.mode, speculation.fixed);
    }
    // Siblings have no text of their own before the prompt's end.
    open_drafter(*request, request->owned[0].get());
  }
}

bool StepLoop::start_step(Microbatch* microbatch, absl::Time now) {
  scheduler_.plan_step(now, &microbatch->plan);
  if (microbatch->plan.empty()) return false;
  plan_drafts(&microbatch->plan, now);
  microbatch->measured = speculating_ > 0;
  if (microbatch->measured) microbatch->began = clock_();
  absl::Status status;
  for (const BlockCopy& copy : microbatch->plan.copies) {
    status = microbatch->model->copy_block(copy.from, copy.to);
    if (!status.ok()) break;
  }
  if (status.ok()) {
    status = microbatch->model->begin(microbatch->builder.build(microbatch->plan), waker_);
  }
  if (!status.ok()) {
    step_failed(microbatch, status);
    return true;
  }
  microbatch->busy = true;
  return true;
}

bool StepLoop::drive_step(Microbatch* microbatch) {
  const absl::Time start = absl::Now();
  const absl::StatusOr<StepModel::Progress> progress = microbatch->model->advance();
  const absl::Time now = absl::Now();
  const bool waits = progress.ok() && *progress == StepModel::Progress::kWaiting;
  overlap_.drove(microbatch - microbatches_.data(), start, now,
                 waits ? microbatch->model->exchange_under_way() : 0);
  if (waits) return false;
  microbatch->busy = false;
  board_->made_progress(now);
  expert_rows_stale_ = true;
  if (progress.ok()) {
    if (microbatch->measured) note_time(*microbatch);
    step_done(microbatch, now);
  } else {
    step_failed(microbatch, progress.status());
  }
  return true;
}

std::vector<std::vector<int64_t>> StepLoop::expert_rows_of_all() const {
  std::vector<std::vector<int64_t>> sum = microbatches_[0].model->expert_rows();
  for (size_t i = 1; i < microbatches_.size(); ++i) {
    const std::vector<std::vector<int64_t>> rows = microbatches_[i].model->expert_rows();
    for (size_t layer = 0; layer < sum.size(); ++layer) {
      for (size_t expert = 0; expert < sum[layer].size(); ++expert) {
        sum[layer][expert] += rows[layer][expert];
      }
    }
  }
  return sum;
}

void StepLoop::publish(absl::Time now) {
  const bool idle = std::none_of(microbatches_.begin(), microbatches_.end(),
                                 [](const Microbatch& microbatch) { return microbatch.busy; });
  if (idle) board_->made_progress(now);
  const SchedulerCounters& counters = scheduler_.counters();
  counts_.waiting_requests = scheduler_.queued_requests();
  counts_.waiting_tokens = scheduler_.queued_tokens();
  counts_.running_sequences = scheduler_.running_sequences() + scheduler_.preempted_sequences();
  counts_.parked_sequences = scheduler_.parked_sequences();
  counts_.parkings = counters.parkings;
  counts_.kv_blocks_in_use = blocks_.in_use();
  counts_.kv_blocks_cached = blocks_.cached();
  counts_.steps = counters.steps;
  counts_.prefix_hit_tokens = counters.prefix_hit_tokens;
  counts_.preemptions = counters.preemptions;
  counts_.paused_for_reader = counters.paused_for_reader;
  counts_.max_sequences_in_step = counters.max_sequences_in_step;
  counts_.mixed_steps = counters.mixed_steps;
  counts_.exchange_seconds = absl::ToDoubleSeconds(overlap_.under_way());
  counts_.covered_exchange_seconds = absl::ToDoubleSeconds(overlap_.covered());
  counts_.graphs = {};
  for (const Microbatch& microbatch : microbatches_) {
    counts_.graphs += microbatch.model->graph_counts();
  }
  board_->publish(counts_);
  // Copying the table allocates, so a busy loop does it only when somebody has asked.
  if (expert_rows_stale_ && (board_->expert_rows_wanted() || active_.empty())) {
    board_->publish_expert_rows(expert_rows_of_all());
    expert_rows_stale_ = false;
  }
}

}  // namespace brigade::runtime
