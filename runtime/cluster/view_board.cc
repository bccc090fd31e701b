#include "runtime/cluster/view_board.h"

#include <algorithm>
#include <utility>

namespace brigade::runtime {
namespace {

using expert_parallel::ClusterView;
using expert_parallel::Rank;

void wake(const ViewBoard::Seat& seat) {
  if (kernels::Waker* waker = seat.waker.load(std::memory_order_acquire)) waker->wake();
}

}  // namespace

uint64_t ViewBoard::publish(std::shared_ptr<const ClusterView> view) {
  std::lock_guard lock(mutex_);
  view_ = std::move(view);
  const uint64_t number = number_.fetch_add(1, std::memory_order_seq_cst) + 1;
  for (const Seat* seat : seats_) wake(*seat);
  return number;
}

bool ViewBoard::acknowledged(uint64_t number) {
  std::lock_guard lock(mutex_);
  return std::all_of(seats_.begin(), seats_.end(), [number](Seat* seat) {
    if (seat->active.load(std::memory_order_seq_cst) &&
        seat->seen.load(std::memory_order_seq_cst) < number) {
      return false;
    }
    // What the layer before it left on the stream may still read memory of an older view.
    std::lock_guard seat_lock(seat->mutex);
    return seat->last_use.ready();
  });
}

std::vector<Rank> ViewBoard::debtors(absl::Time since) {
  std::vector<Rank> ranks;
  std::lock_guard lock(mutex_);
  for (Seat* seat : seats_) {
    const int64_t owed_since = seat->owed_since.load(std::memory_order_acquire);
    if (owed_since == 0 || owed_since > absl::ToUnixNanos(since)) continue;
    std::lock_guard seat_lock(seat->mutex);
    if (seat->debtors_since == owed_since) {
      ranks.insert(ranks.end(), seat->debtors.begin(), seat->debtors.end());
    }
    // Asked again each time: some may have answered since.
    seat->debtors_wanted.store(true, std::memory_order_release);
    wake(*seat);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::shared_ptr<const ClusterView> ViewBoard::view(uint64_t* number) const {
  std::lock_guard lock(mutex_);
  *number = number_.load(std::memory_order_seq_cst);
  return view_;
}

ExchangeTotals ViewBoard::totals() const {
  ExchangeTotals totals;
  std::lock_guard lock(mutex_);
  for (const Seat* seat : seats_) {
    const expert_parallel::ExchangeCounters& counters = seat->exchange->counters();
    totals.exchanges += counters.exchanges;
    totals.replayed_rows += counters.replayed_rows;
    totals.parked_rows += counters.parked_rows;
    totals.late_answers += seat->exchange->late_answers();
    totals.declined_terms += seat->exchange->declined_terms();
    const auto& by_layer = counters.replayed_rows_by_layer;
    totals.replayed_rows_by_layer.resize(by_layer.size());
    for (size_t i = 0; i < by_layer.size(); ++i) totals.replayed_rows_by_layer[i] += by_layer[i];
  }
  return totals;
}

void ViewBoard::add(Seat* seat) {
  std::lock_guard lock(mutex_);
  seats_.push_back(seat);
}

void ViewBoard::remove(Seat* seat) {
  std::lock_guard lock(mutex_);
  std::erase(seats_, seat);
}

}  // namespace brigade::runtime
