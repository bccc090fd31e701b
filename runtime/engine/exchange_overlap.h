// How much of the time that microbatches spend at the experts the step thread spends computing for
// others. A trip lasts from the advance() that began it to the one that took its answers, so
// answers that wait for a busy step thread count as time under way. Step thread; two clock readings
// a turn.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace brigade::runtime {

class ExchangeOverlap {
 public:
  explicit ExchangeOverlap(size_t microbatches) : trips_(microbatches) {}

  // Microbatch `index` was driven from `start` to `end`; it is now on its exchange number `trip`,
  // or on none (0).
  void drove(size_t index, absl::Time start, absl::Time end, uint64_t trip) {
    if (trip != 0 && trip == trips_[index].number) return;  // looked for answers, found none
    if (trips_[index].number != 0) under_way_ += start - trips_[index].since;
    for (size_t i = 0; i < trips_.size(); ++i) {
      if (i != index && trips_[i].number != 0) covered_ += end - start;
    }
    trips_[index] = {trip, end};
  }

  absl::Duration under_way() const { return under_way_; }
  absl::Duration covered() const { return covered_; }

 private:
  struct Trip {
    uint64_t number = 0;
    absl::Time since;
  };
  std::vector<Trip> trips_;
  absl::Duration under_way_, covered_;
};

}  // namespace brigade::runtime
