#include "runtime/cluster/viewed_exchange.h"

#include <utility>

#include "absl/time/clock.h"
#include "kernels/core/status.h"

namespace brigade::runtime {

ViewedExchange::ViewedExchange(ViewBoard& board,
                               std::unique_ptr<expert_parallel::ClusterExchange> exchange)
    : board_(board), exchange_(std::move(exchange)) {
  seat_.exchange = exchange_.get();
  board_.add(&seat_);
}

ViewedExchange::~ViewedExchange() { board_.remove(&seat_); }

absl::Status ViewedExchange::take_view() {
  if (board_.number() == taken_) return absl::OkStatus();
  auto view = board_.view(&taken_);
  seat_.owed_since.store(absl::GetCurrentTimeNanos(), std::memory_order_release);
  return exchange_->set_view(std::move(view));
}

absl::Status ViewedExchange::begin(kernels::Stream& stream, const expert_parallel::LayerRows& layer,
                                   kernels::Waker* waker) {
  stream_ = &stream;
  seat_.waker.store(waker, std::memory_order_release);
  seat_.active.store(true, std::memory_order_seq_cst);
  absl::Status status = take_view();
  if (status.ok()) {
    seat_.seen.store(taken_, std::memory_order_seq_cst);
    seat_.owed_since.store(absl::GetCurrentTimeNanos(), std::memory_order_release);
    status = exchange_->begin(stream, layer, waker);
  }
  if (!status.ok()) leave();
  return status;
}

absl::StatusOr<bool> ViewedExchange::poll() {
  if (!seat_.active.load(std::memory_order_relaxed)) return exchange_->poll();
  if (const absl::Status status = take_view(); !status.ok()) {
    leave();
    return status;
  }
  absl::StatusOr<bool> done = exchange_->poll();
  if (done.ok() && !*done) {
    if (seat_.debtors_wanted.load(std::memory_order_acquire)) name_debtors();
    return done;
  }
  if (done.ok()) {
    if (const absl::Status status = note_use(); !status.ok()) done = status;
  }
  leave();
  return done;
}

absl::Status ViewedExchange::note_use() {
  if (stream_->device().kind() != kernels::DeviceKind::kCpu) {
    ASSIGN_OR_RETURN(kernels::Event used, stream_->record());
    std::lock_guard lock(seat_.mutex);
    seat_.last_use = std::move(used);
  }
  return absl::OkStatus();
}

void ViewedExchange::leave() {
  seat_.owed_since.store(0, std::memory_order_release);
  seat_.active.store(false, std::memory_order_seq_cst);
}

void ViewedExchange::name_debtors() {
  seat_.debtors_wanted.store(false, std::memory_order_relaxed);
  std::vector<expert_parallel::Rank> debtors = exchange_->waiting_for();
  std::lock_guard lock(seat_.mutex);
  seat_.debtors_since = seat_.owed_since.load(std::memory_order_relaxed);
  seat_.debtors = std::move(debtors);
}

}  // namespace brigade::runtime
