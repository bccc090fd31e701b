// Sequences that wait for an expert nobody holds: when they are tried again.
#include <algorithm>

#include "runtime/scheduler/scheduler.h"

namespace brigade::runtime {
namespace {

constexpr int kMostRetryDoublings = 4;

}  // namespace

// `at_once`: the cluster has changed since its step was planned.
void Scheduler::park(ScheduledSequence* sequence, bool at_once, absl::Time now) {
  ++counters_.parkings;
  const int doublings = std::min(sequence->parks++, kMostRetryDoublings);
  sequence->retry_at =
      at_once ? absl::InfinitePast() : now + config_.parking_retry * (int64_t{1} << doublings);
}

void Scheduler::cluster_changed() {
  ++cluster_changes_;
  for (const auto* list : {&running_, &preempted_}) {
    for (ScheduledSequence* sequence : *list) sequence->retry_at = absl::InfinitePast();
  }
}

absl::Time Scheduler::next_retry(absl::Time after) const {
  absl::Time next = absl::InfiniteFuture();
  for (const ScheduledSequence* sequence : running_) {
    if (sequence->retry_at > after) next = std::min(next, sequence->retry_at);
  }
  return next;
}

int Scheduler::parked_sequences() const {
  const auto parked = [](const ScheduledSequence* sequence) { return sequence->parked(); };
  return static_cast<int>(std::count_if(running_.begin(), running_.end(), parked) +
                          std::count_if(preempted_.begin(), preempted_.end(), parked));
}

}  // namespace brigade::runtime
