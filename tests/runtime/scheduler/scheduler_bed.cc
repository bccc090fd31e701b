#include "tests/runtime/scheduler/scheduler_bed.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace brigade::tests {

using runtime::ScheduledSequence;
using runtime::SequenceState;

SchedulerBed::SchedulerBed(const BedConfig& config)
    : config_(config),
      blocks_(config.blocks, config.block_size),
      scheduler_(config.scheduler, &blocks_),
      admission_({.max_running_sequences = config.scheduler.max_running_sequences,
                  .max_waiting_requests = config.max_waiting_requests,
                  .max_waiting_tokens = config.max_waiting_tokens,
                  .kv_blocks = config.blocks,
                  .block_size = config.block_size,
                  .max_blocks_per_sequence = config.blocks}),
      kv_(config.blocks, config.block_size),
      plans_(config.scheduler.microbatches) {}

int32_t SchedulerBed::next_token(std::span<const int32_t> tokens) {
  return static_cast<int32_t>(hash_prefix(tokens) % 30011);
}

std::vector<int32_t> SchedulerBed::prompt(int seed, int length) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back((seed * 7919 + i * 31) % 30011);
  return tokens;
}

void SchedulerBed::report(const std::string& problem) {
  if (problem_.empty()) problem_ = absl::StrCat("step ", steps_, ": ", problem);
}

absl::StatusOr<BedRequest*> SchedulerBed::submit(const BedCall& call) {
  runtime::AdmissionTicket ticket;
  const int64_t positions = static_cast<int64_t>(call.prompt.size()) + call.max_tokens - 1;
  const auto prompt_tokens = static_cast<int64_t>(call.prompt.size());
  if (absl::Status entered = admission_.enter(call.sequences, prompt_tokens, positions, &ticket);
      !entered.ok()) {
    return entered;
  }
  auto request = std::make_unique<BedRequest>();
  request->index = static_cast<int>(requests_.size());
  request->call = call;
  request->ticket = ticket;
  request->submitted = now_;
  request->deadline = now_ + call.deadline;
  request->salt = std::make_shared<std::string>(call.salt);
  request->use_prefix_cache = call.use_prefix_cache;
  request->max_positions = static_cast<int>(positions);
  request->room = config_.stream_capacity;
  for (int i = 0; i < call.sequences; ++i) {
    auto sequence = std::make_unique<ScheduledSequence>();
    sequence->request = request.get();
    sequence->sample_index = i;
    sequence->tokens = call.prompt;
    request->sequences.push_back(sequence.get());
    request->owned.push_back(std::move(sequence));
  }
  request->sent.resize(call.sequences);
  request->sent_at_step.resize(call.sequences);
  scheduler_.enqueue(request.get());
  requests_.push_back(std::move(request));
  return requests_.back().get();
}

void SchedulerBed::cancel(BedRequest* request, const absl::Status& why) {
  if (!request->answered) end_request(request, why);
}

void SchedulerBed::end_request(BedRequest* request, const absl::Status& why) {
  request->end = why;
  for (ScheduledSequence* sequence : request->sequences) {
    if (sequence->state != SequenceState::kEnded) end_sequence(request, sequence);
  }
}

void SchedulerBed::end_sequence(BedRequest* request, ScheduledSequence* sequence) {
  scheduler_.end(sequence);
  request->finish_order.push_back(sequence->sample_index);
  if (++request->ended < static_cast<int>(request->sequences.size())) return;
  request->answered = true;
  collect(request);
}

// Lets the scheduler forget a request once nothing of it is in flight.
void SchedulerBed::collect(BedRequest* request) {
  if (!request->answered || request->ticket.sequences == 0) return;
  for (const ScheduledSequence* sequence : request->sequences) {
    if (sequence->in_flight) return;
  }
  scheduler_.leave(request);
  admission_.left_queue(&request->ticket);
  admission_.ended(request->ticket);
  request->ticket.sequences = 0;
}

void SchedulerBed::answer_expired() {
  std::vector<runtime::Expiry> expired;
  scheduler_.find_expired(now_, &expired);
  for (const runtime::Expiry& expiry : expired) {
    auto* request = static_cast<BedRequest*>(expiry.request);
    if (request->answered) continue;
    const bool reader = expiry.kind == runtime::ExpiryKind::kReaderTimeout;
    end_request(request,
                reader ? absl::CancelledError("reader") : absl::DeadlineExceededError("late"));
  }
}

void SchedulerBed::refresh_rooms() {
  for (const auto& request : requests_) {
    if (request->reads) request->unread = 0;
    request->room = config_.stream_capacity - static_cast<size_t>(request->unread);
  }
}

void SchedulerBed::plan_idle() {
  for (size_t i = 0; i < plans_.size(); ++i) {
    if (std::find(in_flight_.begin(), in_flight_.end(), i) != in_flight_.end()) continue;
    scheduler_.plan_step(now_, &plans_[i]);
    if (plans_[i].empty()) continue;
    for (const runtime::BlockCopy& copy : plans_[i].copies) kv_.copy_block(copy.from, copy.to);
    in_flight_.push_back(i);
  }
}

int SchedulerBed::step() {
  ++steps_;
  answer_expired();
  refresh_rooms();
  std::vector<runtime::ScheduledRequest*> started;
  scheduler_.admit(now_, &started);
  for (runtime::ScheduledRequest* request : started) {
    admission_.left_queue(&static_cast<BedRequest*>(request)->ticket);
  }
  plan_idle();
  if (!blocks_.consistent()) report("the KV accounts disagree");
  if (in_flight_.empty()) return 0;
  runtime::StepPlan& plan = plans_[in_flight_.front()];
  in_flight_.pop_front();
  last_plan_ = plan;
  const int rows = plan.rows;
  compute(&plan);
  if (!blocks_.consistent()) report("the KV accounts disagree");
  return rows;
}

// Writes the step's KV rows, as a model would.
void SchedulerBed::write_rows(const runtime::StepPlan& plan) {
  int rows = 0;
  for (const runtime::StepSlice& slice : plan.slices) {
    const ScheduledSequence& sequence = *slice.sequence;
    rows += slice.count;
    if (sequence.state == SequenceState::kEnded) continue;
    std::string problem;
    for (int i = 0; i < slice.count; ++i) {
      const int position = slice.start + i;
      if (slice.parked) {
        const int size = config_.block_size;
        kv_.poison_slot(int64_t{sequence.blocks[static_cast<size_t>(position / size)]} * size +
                        position % size);
        continue;
      }
      kv_.write(sequence.blocks, position, sequence.tokens[static_cast<size_t>(position)],
                &problem);
    }
    if (!problem.empty()) report(problem);
  }
  if (rows != plan.rows || rows > config_.scheduler.max_rows) report("wrong number of rows");
  if (plan.slices.size() > static_cast<size_t>(config_.scheduler.max_step_sequences)) {
    report("too many sequences in a step");
  }
}

void SchedulerBed::compute(runtime::StepPlan* plan) {
  for (runtime::StepSlice& slice : plan->slices) slice.parked = parks && parks(slice);
  write_rows(*plan);
  scheduler_.step_ended(plan, true, now_);
  for (const runtime::StepSlice& slice : plan->slices) {
    auto* request = static_cast<BedRequest*>(slice.sequence->request);
    ScheduledSequence* sequence = slice.sequence;
    if (sequence->state == SequenceState::kEnded) {
      collect(request);
      continue;
    }
    if (slice.parked || !slice.wants_logits) continue;
    scheduler_.confirm(sequence);
    // Sequences of one request differ by their first token.
    const int32_t token = next_token(sequence->tokens);
    if (!request->forked) {
      request->forked = true;
      for (size_t i = 1; i < request->sequences.size(); ++i) {
        if (request->sequences[i]->state == SequenceState::kEnded) continue;
        scheduler_.fork(*sequence, request->sequences[i]);
      }
      for (size_t i = 1; i < request->sequences.size(); ++i) {
        if (request->sequences[i]->state == SequenceState::kEnded) continue;
        take_token(request, request->sequences[i], token + static_cast<int32_t>(i));
      }
    }
    take_token(request, sequence, token);
  }
  plan->clear();
}

void SchedulerBed::take_token(BedRequest* request, ScheduledSequence* sequence, int32_t token) {
  std::vector<int32_t>& sent = request->sent[sequence->sample_index];
  // What was sent so far must be what the sequence still holds.
  const size_t prompt = request->call.prompt.size();
  if (sequence->tokens.size() != prompt + sent.size() ||
      !std::equal(sent.begin(), sent.end(),
                  sequence->tokens.begin() + static_cast<int64_t>(prompt))) {
    report("a token was sent twice or changed");
  }
  sent.push_back(token);
  request->sent_at_step[sequence->sample_index].push_back(steps_);
  if (++request->unread > static_cast<int>(config_.stream_capacity)) report("a stream overflowed");
  scheduler_.append(sequence, token);
  if (static_cast<int>(sent.size()) == request->call.max_tokens) end_sequence(request, sequence);
}

bool SchedulerBed::run(int most_steps) {
  for (int i = 0; i < most_steps; ++i) {
    const bool done = std::all_of(requests_.begin(), requests_.end(),
                                  [](const auto& request) { return request->answered; });
    if (done && in_flight_.empty()) return true;
    step();
  }
  return false;
}

std::string SchedulerBed::describe() const {
  std::string text =
      absl::StrCat(blocks_.total(), " blocks, ", blocks_.free(), " free, ", blocks_.cached(),
                   " cached, block size ", config_.block_size, "\n");
  for (const auto& request : requests_) {
    if (request->answered) continue;
    absl::StrAppend(&text, "request ", request->index, ": started ", request->started, ", forked ",
                    request->forked, ", room ", request->room, ", in flight ",
                    request->events_in_flight, "\n");
    for (const ScheduledSequence* sequence : request->sequences) {
      absl::StrAppend(&text, "  ", sequence->sample_index, ": state ",
                      static_cast<int>(sequence->state), ", ", sequence->computed, " of ",
                      sequence->tokens.size(), " computed, ", sequence->blocks.size(),
                      " blocks, preempted ", sequence->preemptions, ", paused ", sequence->paused(),
                      "\n");
    }
  }
  return text;
}

std::string SchedulerBed::leak() const {
  if (blocks_.in_use() != 0) return absl::StrCat(blocks_.in_use(), " KV blocks in use");
  if (blocks_.available() != blocks_.total()) return "lost KV blocks";
  if (scheduler_.running_sequences() != 0) return "running sequences";
  if (scheduler_.preempted_sequences() != 0) return "preempted sequences";
  if (scheduler_.parked_sequences() != 0) return "parked sequences";
  if (scheduler_.queued_requests() != 0) return "queued requests";
  if (scheduler_.next_expiry() != absl::InfiniteFuture()) return "requests that never left";
  if (admission_.live_requests() != 0) return "live requests at the door";
  if (admission_.waiting_requests() != 0) return "waiting requests at the door";
  if (admission_.waiting_tokens() != 0) return "waiting tokens at the door";
  return "";
}

std::vector<int32_t> expected_tokens(const BedCall& call, int sample) {
  std::vector<int32_t> tokens = call.prompt;
  for (int i = 0; i < call.max_tokens; ++i) {
    tokens.push_back(SchedulerBed::next_token(tokens) + (i == 0 ? sample : 0));
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(call.prompt.size()), tokens.end()};
}

void expect_complete(const BedRequest& request) {
  EXPECT_TRUE(request.answered);
  EXPECT_TRUE(request.end.ok()) << request.end;
  for (size_t i = 0; i < request.sent.size(); ++i) {
    EXPECT_EQ(request.sent[i], expected_tokens(request.call, static_cast<int>(i)));
  }
}

void expect_clean(const SchedulerBed& bed) {
  EXPECT_EQ(bed.problem(), "");
  EXPECT_EQ(bed.leak(), "");
}

}  // namespace brigade::tests
