// One direction of an emulated link: packets go in, and come out later, out of order, or not at
// all, as the faults say. Random numbers come from a seed; the clock is the caller's. The queue is
// bounded: what does not fit is dropped, as a router does. No I/O; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>

#include "absl/time/time.h"

namespace brigade::tests {

struct LinkFaults {
  absl::Duration delay;   // of every packet
  absl::Duration jitter;  // up to so much more; keeps order
  double loss = 0;        // chance of a packet
  double reorder = 0;     // chance of being held back, so that those behind it overtake
  absl::Duration hold_back = absl::Milliseconds(3);
  bool cut = false;  // nothing enters; what is inside still comes out
};

struct LinkCounts {
  uint64_t seen = 0, passed = 0, lost = 0, cut = 0, overflowed = 0, held_back = 0, overtaken = 0;
};

class LinkDirection {
 public:
  static constexpr size_t kMaxPackets = 4096;

  explicit LinkDirection(uint64_t seed) : random_(seed) {}
  LinkFaults& faults() { return faults_; }
  const LinkCounts& counts() const { return counts_; }

  void put(std::string packet, absl::Time now);
  // InfiniteFuture: nothing is inside.
  absl::Time next_due() const;
  // The next packet that is due; false when there is none.
  bool take(absl::Time now, std::string* packet);

 private:
  struct Held {
    uint64_t number;
    std::string packet;
  };
  double chance() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  std::mt19937_64 random_;
  LinkFaults faults_;
  LinkCounts counts_;
  std::multimap<absl::Time, Held> inside_;  // by due time; equal times in order of arrival
  absl::Time last_due_ = absl::InfinitePast();
  uint64_t next_number_ = 0, highest_taken_ = 0;
};

}  // namespace brigade::tests
