#include "expert_parallel/exchange/cluster_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {
namespace {

using kernels::Buffer;

// A change of the cluster in the middle of a layer waits this long for the device, at most.
constexpr absl::Duration kReplanTimeout = absl::Seconds(10);

void add(std::atomic<uint64_t>& counter, uint64_t amount) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterExchange>> ClusterExchange::create(
    kernels::Device& device, WorkerLinks& links, const ExpertShard* shard,
    const ClusterExchangeConfig& config) {
  if (config.microbatch < 0 || config.microbatch >= links.config().microbatches ||
      config.max_rows < 1) {
    return absl::InvalidArgumentError(absl::StrCat("exchange of microbatch ", config.microbatch,
                                                   " with ", config.max_rows, " rows: links serve ",
                                                   links.config().microbatches, " microbatches"));
  }
  if (links.config().limits.max_slots < config.max_rows * config.geometry.top_k) {
    return absl::InvalidArgumentError(absl::StrCat("exchange of ", config.max_rows,
                                                   " rows: frames carry ",
                                                   links.config().limits.max_slots, " slots"));
  }
  auto exchange = std::unique_ptr<ClusterExchange>(
      new ClusterExchange(links, shard, config, device.kind() == kernels::DeviceKind::kCpu));
  RETURN_IF_ERROR(exchange->plan_buffers(device));
  links.attach(config.microbatch, exchange.get());
  return exchange;
}

ClusterExchange::ClusterExchange(WorkerLinks& links, const ExpertShard* shard,
                                 const ClusterExchangeConfig& config, bool host_memory)
    : links_(links),
      shard_(shard),
      config_(config),
      host_memory_(host_memory),
      device_frames_(links.device_frames()),
      plan_(config.max_rows, config.geometry.top_k, config.geometry.experts,
            links.config().num_ranks),
      packer_(config.max_rows, config.geometry.top_k, links.config().num_ranks,
              config.geometry.hidden),
      slots_(config.max_rows * config.geometry.top_k,
             size_t(config.geometry.hidden) * kernels::dtype_bytes(config.geometry.wire_dtype)),
      rank_of_term_(size_t(config.max_rows) * config.geometry.top_k),
      sent_(rank_of_term_.size()),
      sent_by_(rank_of_term_.size()) {
  parked_.reserve(config.max_rows);
  counters_.replayed_rows_by_layer = std::vector<std::atomic<uint64_t>>(config.geometry.moe_layers);
}

ClusterExchange::~ClusterExchange() {
  slots_.end();
  if (device_frames_) device_answers_.drop(links_);
  links_.attach(config_.microbatch, nullptr);
  if (stream_ == nullptr || !device_frames_) return;
  // A stream that does not end keeps the buffers that it writes.
  const absl::Status ended = stream_->synchronize(absl::Now() + kReplanTimeout);
  if (!absl::IsDeadlineExceeded(ended)) links_.has_written(stream_);
}

absl::Status ClusterExchange::plan_buffers(kernels::Device& device) {
  const ExpertGeometry& geometry = config_.geometry;
  const size_t terms = rank_of_term_.size();
  const size_t answer_bytes = terms * geometry.hidden * kernels::dtype_bytes(geometry.wire_dtype);
  ASSIGN_OR_RETURN(answers_, Buffer::allocate(device, answer_bytes));
  if (shard_ != nullptr) {
    ASSIGN_OR_RETURN(local_, LocalExperts::create(device, *shard_, config_.max_rows));
  }
  if (device_frames_) {
    if (links_.config().device != &device)
      return absl::InvalidArgumentError("exchange: the links carry memory of another device");
    RETURN_IF_ERROR(links_.plan_device_memory());
    // A row goes to so many ranks at most.
    const int shares = std::max(1, std::min(geometry.top_k, links_.config().num_ranks));
    const size_t index_bytes = size_t(config_.max_rows) * shares * sizeof(int32_t);
    ASSIGN_OR_RETURN(host_row_index_, kernels::HostBuffer::allocate(device, index_bytes));
    ASSIGN_OR_RETURN(row_index_, Buffer::allocate(device, index_bytes));
    RETURN_IF_ERROR(device_answers_.plan(device, static_cast<int>(terms), geometry.hidden,
                                         geometry.wire_dtype));
  } else if (!host_memory_) {
    const size_t x_bytes = size_t(config_.max_rows) * geometry.hidden * sizeof(float);
    ASSIGN_OR_RETURN(host_x_, kernels::HostBuffer::allocate(device, x_bytes));
    ASSIGN_OR_RETURN(host_answers_, kernels::HostBuffer::allocate(device, answer_bytes));
  }
  return absl::OkStatus();
}

// The first replica that is there.
Rank ClusterExchange::holder(int moe_layer, int32_t expert) const {
  for (const Rank rank : view_->placement->replicas(moe_layer, expert)) {
    if (rank == kCoordinator) {
      if (shard_ != nullptr && shard_->holds(moe_layer, expert)) return rank;
    } else if (view_->incarnation_of(rank) != 0) {
      return rank;
    }
  }
  return kNotPlanned;
}

absl::Status ClusterExchange::begin(kernels::Stream& stream, const LayerRows& layer,
                                    kernels::Waker* waker) {
  if (view_ == nullptr)
    return absl::FailedPreconditionError("exchange: no view of the cluster yet");
  if (layer.rows > config_.max_rows) {
    return absl::InvalidArgumentError(absl::StrCat("exchange of MoE layer ", layer.moe_layer, ": ",
                                                   layer.rows, " rows, planned for ",
                                                   config_.max_rows));
  }
  stream_ = &stream;
  layer_ = layer;
  waker_.store(waker, std::memory_order_release);
  active_ = true;
  resend_ = false;
  step_ = links_.next_step();
  parked_.clear();
  const int terms = layer.rows * config_.geometry.top_k;
  std::fill(sent_.begin(), sent_.begin() + terms, kNotSent);
  slots_.begin(step_, static_cast<uint32_t>(layer.moe_layer), terms,
               staged() ? host_answers_.as<std::byte>() : answers_.as<std::byte>());
  if (device_frames_) {
    device_answers_.drop(links_);  // of a layer that was given up
    device_answers_.begin();
    collected_ = absl::OkStatus();
  }
  plan_.build_terms({layer.experts, static_cast<size_t>(terms)}, layer.rows, [&](int32_t term) {
    const Rank rank = rank_of_term_[term] = holder(layer.moe_layer, layer.experts[term]);
    sent_by_[term] = view_number_;
    rank == kNotPlanned ? slots_.homeless(term) : slots_.expect(term, rank);
    return rank;
  });
  if (staged() && terms > 0) {
    RETURN_IF_ERROR(stream.copy_to_host(
        host_x_.data(), layer.x, size_t(layer.rows) * config_.geometry.hidden * sizeof(float)));
    ASSIGN_OR_RETURN(x_on_host_, stream.record(waker));
  }
  add(counters_.exchanges, 1);
  return carry_out();
}

// What the plan says: local experts now, frames as far as there are buffers.
absl::Status ClusterExchange::carry_out() {
  packer_.start(plan_);
  count_shares();
  if (device_frames_) RETURN_IF_ERROR(upload_rows());
  // Remote frames leave first, so that workers compute while this thread does.
  RETURN_IF_ERROR(pack());
  for (const RankWork& work : plan_.work()) {
    if (work.rank != kCoordinator) continue;
    for (int32_t i = work.first_entry; i < work.first_entry + work.num_entries; ++i) {
      slots_.answered_here(plan_.entry_slot()[i]);
    }
    RETURN_IF_ERROR(
        local_->run(*stream_, plan_, work, layer_.moe_layer, layer_.x, answers_.data()));
  }
  return absl::OkStatus();
}

void ClusterExchange::wake() {
  if (kernels::Waker* waker = waker_.load(std::memory_order_acquire)) waker->wake();
}

absl::Status ClusterExchange::set_view(std::shared_ptr<const ClusterView> view) {
  if (view == nullptr || view->placement == nullptr ||
      view->placement->experts() != config_.geometry.experts ||
      view->placement->moe_layers() != config_.geometry.moe_layers ||
      view->incarnation.size() > static_cast<size_t>(links_.config().num_ranks)) {
    return absl::InvalidArgumentError(
        "exchange: the view's placement does not fit the model or the rank slots");
  }
  const std::shared_ptr<const ClusterView> before = std::exchange(view_, std::move(view));
  ++view_number_;
  if (!active_) return absl::OkStatus();
  resend_ = false;  // declined terms go out now
  // The plan is read by copies that may still be under way.
  if (!host_memory_) RETURN_IF_ERROR(stream_->synchronize(absl::Now() + kReplanTimeout));
  if (device_frames_) links_.has_written(stream_);
  return replan_all(*before);
}

// Terms that were declined because they had been sent by an older view.
absl::Status ClusterExchange::resend_declined() {
  if (slots_.take_declines()) {
    resend_ = true;
    if (!host_memory_) {
      ASSIGN_OR_RETURN(plan_is_read_, stream_->record(waker_.load(std::memory_order_relaxed)));
    }
  }
  if (!resend_ || (!host_memory_ && !plan_is_read_.ready())) return absl::OkStatus();
  resend_ = false;
  return replan_all(*view_);
}

absl::Status ClusterExchange::replan_all(const ClusterView& before) {
  const int terms = layer_.rows * config_.geometry.top_k;
  last_replayed_row_ = -1;
  plan_.build_terms({layer_.experts, static_cast<size_t>(terms)}, layer_.rows,
                    [&](int32_t term) { return replan(term, before); });
  return carry_out();
}

// Who computes an unanswered term from now on; kNotPlanned leaves it with whoever has it.
Rank ClusterExchange::replan(int32_t term, const ClusterView& before) {
  const Rank rank = rank_of_term_[term];
  if (slots_.is_answered(term)) return kNotPlanned;
  const bool lost =
      rank != kNotPlanned && view_->incarnation_of(rank) != before.incarnation_of(rank);
  const bool declined = slots_.is_declined(term);
  if (rank != kNotPlanned && sent_[term] != kNotSent && !lost) {
    if (!declined) return kNotPlanned;
    if (sent_by_[term] == view_number_) {  // by the rank that this view names
      add(counters_.declined_by_holder, sent_[term] == kSent);
      sent_[term] = kSentAndCounted;
      return kNotPlanned;
    }
  }
  const Rank next = rank_of_term_[term] = holder(layer_.moe_layer, layer_.experts[term]);
  sent_by_[term] = view_number_;
  next == kNotPlanned ? slots_.homeless(term) : slots_.expect(term, next);
  const int32_t row = term / config_.geometry.top_k;
  if ((lost || declined) && row != last_replayed_row_) {
    last_replayed_row_ = row;
    add(counters_.replayed_rows, 1);
    add(counters_.replayed_rows_by_layer[layer_.moe_layer], 1);
  }
  sent_[term] = kNotSent;
  return next;
}

absl::StatusOr<bool> ClusterExchange::poll() {
  if (!active_) return true;
  RETURN_IF_ERROR(resend_declined());
  RETURN_IF_ERROR(pack());
  if (!slots_.complete() && !std::exchange(just_sent_, false)) links_.look();
  // Also of an exchange that is not complete: frames that wait here are the workers' credits.
  const bool complete = slots_.complete();
  if (device_frames_) {
    links_.collect();
    RETURN_IF_ERROR(collected_);
  }
  if (!complete) return false;
  if (config_.homeless_rows == HomelessRows::kWait) {
    for (int32_t term = 0; term < layer_.rows * config_.geometry.top_k; ++term) {
      if (slots_.is_homeless(term)) return false;
    }
  }
  RETURN_IF_ERROR(finish());
  active_ = false;
  return true;
}

// Every expected answer is there: bring what came from workers to the device, and mark what is
// missing.
absl::Status ClusterExchange::finish() {
  const int top_k = config_.geometry.top_k, terms = layer_.rows * top_k;
  const size_t row_bytes =
      size_t(config_.geometry.hidden) * kernels::dtype_bytes(config_.geometry.wire_dtype);
  for (int32_t term = 0; term < terms;) {
    const Rank rank = rank_of_term_[term];
    int32_t end = term + 1;
    while (end < terms && rank_of_term_[end] == rank) ++end;
    std::byte* on_device = answers_.as<std::byte>() + term * row_bytes;
    const size_t bytes = (end - term) * row_bytes;
    if (rank == kNotPlanned) {
      RETURN_IF_ERROR(stream_->fill_bytes(on_device, 0xff, bytes));  // NaN in f32 and bf16
      for (int32_t row = term / top_k; row <= (end - 1) / top_k; ++row) {
        if (parked_.empty() || parked_.back() != row) parked_.push_back(row);
      }
    } else if (rank != kCoordinator && device_frames_) {
      RETURN_IF_ERROR(device_answers_.scatter(*stream_, term, end - term, on_device));
    } else if (rank != kCoordinator && !host_memory_) {
      RETURN_IF_ERROR(stream_->copy_to_device(
          on_device, host_answers_.as<std::byte>() + term * row_bytes, bytes));
    }
    term = end;
  }
  add(counters_.parked_rows, parked_.size());
  return absl::OkStatus();
}

std::vector<Rank> ClusterExchange::waiting_for() {
  std::vector<Rank> ranks;
  if (!active_) return ranks;
  for (int32_t term = 0; term < layer_.rows * config_.geometry.top_k; ++term) {
    if (!slots_.is_answered(term) && rank_of_term_[term] >= 0) ranks.push_back(rank_of_term_[term]);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void ClusterExchange::on_frame(Rank rank, const FrameView& frame) {
  if (slots_.fill(rank, frame)) wake();
}

bool ClusterExchange::on_device_frame(Rank rank, const FrameView& frame, uint64_t receipt) {
  if (!slots_.fill_later(rank, frame, receipt, device_answers_)) return false;
  wake();
  return true;
}

bool ClusterExchange::collect() {
  if (!device_frames_ || stream_ == nullptr) return false;
  const absl::StatusOr<bool> collected = device_answers_.collect(*stream_, links_);
  if (!collected.ok()) collected_ = collected.status();
  return !collected.ok() || *collected;
}

void ClusterExchange::on_room() {
  if (starved_.exchange(false, std::memory_order_seq_cst)) wake();
}

}  // namespace brigade::expert_parallel
