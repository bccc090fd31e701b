// Where the control thread publishes views of the cluster and exchanges find them: each exchange
// has a seat, in which it says under which view its rows travel. An exchange without a layer under
// way counts as up to date, so an idle engine holds nothing up and the step thread never waits.
//
// Locks: one mutex for the view and the list of seats, held for a few pointers; nothing else here
// waits. Dekker's rule (sequentially consistent): a seat says "active" before it reads the number
// of the view; the control thread raises the number before it reads "active".
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "expert_parallel/exchange/cluster_exchange.h"
#include "expert_parallel/exchange/cluster_view.h"
#include "kernels/core/device.h"
#include "kernels/core/waker.h"

namespace brigade::runtime {

// Sums over all exchanges, since start.
struct ExchangeTotals {
  uint64_t exchanges = 0, replayed_rows = 0, parked_rows = 0, late_answers = 0, declined_terms = 0;
  std::vector<uint64_t> replayed_rows_by_layer;  // by MoE layer
};

class ViewBoard {
 public:
  // One exchange's place. The exchange writes, the control thread reads.
  struct Seat {
    std::atomic<bool> active{false};  // a layer is under way
    std::atomic<uint64_t> seen{0};    // all rows of the layer under way travel under this view
    // Nanoseconds since the epoch from which on ranks may owe answers; 0: none does.
    std::atomic<int64_t> owed_since{0};
    std::atomic<bool> debtors_wanted{false};
    std::atomic<kernels::Waker*> waker{nullptr};
    const expert_parallel::ClusterExchange* exchange = nullptr;

    std::mutex mutex;  // guards the rest
    int64_t debtors_since = 0;
    std::vector<expert_parallel::Rank> debtors;
    kernels::Event last_use;  // of device memory by the last layer
  };

  // Control thread.
  // Makes `view` the current one, wakes every exchange, returns its number (from 1 on).
  uint64_t publish(std::shared_ptr<const expert_parallel::ClusterView> view);
  // No row travels or is computed under a view before `number` any more.
  bool acknowledged(uint64_t number);
  // Ranks that have owed answers since before `since`. Asks the step thread, which answers at its
  // next turn: empty at first. A busy step thread blames nobody.
  std::vector<expert_parallel::Rank> debtors(absl::Time since);

  // Any thread.
  uint64_t number() const { return number_.load(std::memory_order_seq_cst); }
  std::shared_ptr<const expert_parallel::ClusterView> view(uint64_t* number) const;
  ExchangeTotals totals() const;

  void add(Seat* seat);
  void remove(Seat* seat);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const expert_parallel::ClusterView> view_;
  std::atomic<uint64_t> number_{0};
  std::vector<Seat*> seats_;
};

}  // namespace brigade::runtime
