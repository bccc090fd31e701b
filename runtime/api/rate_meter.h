// Tokens per second over the last few seconds, from samples of counters that only grow. One thread
// adds, any thread reads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "absl/time/time.h"

namespace brigade::runtime {

class RateMeter {
 public:
  // At least a sample interval apart; earlier ones are ignored.
  void add_sample(absl::Time now, int64_t prompt_tokens, int64_t generated_tokens);

  struct Rates {
    double prompt = 0, generated = 0;
  };
  Rates rates() const;

 private:
  static constexpr size_t kSamples = 10;
  static constexpr absl::Duration kInterval = absl::Milliseconds(500);

  struct Sample {
    absl::Time at = absl::InfinitePast();
    int64_t prompt = 0, generated = 0;
  };
  mutable std::mutex mutex_;
  std::array<Sample, kSamples> ring_;
  size_t count_ = 0;  // samples ever added
};

}  // namespace brigade::runtime
