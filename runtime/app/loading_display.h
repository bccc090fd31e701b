// How far loading has come and how fast: to the serving state, for probes and clients, and as a bar on a
// terminal or a line in a log now and then. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "runtime/api/serving_state.h"
#include "runtime/model/load_pace.h"

namespace brigade::runtime {

class LoadingDisplay {
 public:
  // `state` outlives this.
  explicit LoadingDisplay(ServingState* state);
  ~LoadingDisplay();

  // `done` of `total` bytes; total 0: unknown. Another stage ends the one before.
  void update(const std::string& stage, int64_t done, int64_t total);

 private:
  void log(bool fresh, int64_t done, int64_t total, absl::Time now);
  void draw(int64_t done, int64_t total, absl::Time now);

  ServingState* const state_;
  const bool terminal_;
  std::string stage_;
  LoadPace pace_{absl::InfinitePast()};
  absl::Time drawn_ = absl::InfinitePast();
  bool line_open_ = false;
};

}  // namespace brigade::runtime
