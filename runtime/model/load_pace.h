// How far a load has come and how fast, in words for logs and bars. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "runtime/model/weight_uploader.h"

namespace brigade::runtime {

// "12.3 GB"
std::string bytes_in_words(int64_t bytes);

class LoadPace {
 public:
  static constexpr absl::Duration kBetweenLines = absl::Seconds(10);

  // Of what is left from `done` bytes on.
  explicit LoadPace(absl::Time start, int64_t done = 0)
      : start_(start), last_line_(start), done_at_start_(done) {}

  // "12.3 GB of 90.0 GB, 1.9 GB/s, 41 s left"; without pace in the first moments.
  std::string words(int64_t done, int64_t total, absl::Time now) const;
  // "90.0 GB in 48.1 s (1.9 GB/s)"
  std::string summary(int64_t done, absl::Time now) const;
  // Whether the log is owed a line; the next is not before kBetweenLines.
  bool line_due(absl::Time now);

 private:
  double bytes_per_second(int64_t done, absl::Time now) const;  // 0: too early to say

  absl::Time start_, last_line_;
  int64_t done_at_start_;
};

// For LoadOptions::on_progress: says how far loading is now and then, and how it went.
LoadProgressCallback log_load_progress(std::function<void(const std::string& line)> log);

}  // namespace brigade::runtime
