// How far loading has come: to the serving state, for probes and clients, and as a bar on a
// terminal or lines in a log. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "runtime/api/serving_state.h"

namespace brigade::runtime {

class LoadingDisplay {
 public:
  // `state` outlives this.
  explicit LoadingDisplay(ServingState* state);
  ~LoadingDisplay();

  // `done` of `total` bytes; total 0: unknown.
  void update(const std::string& stage, int64_t done, int64_t total);

 private:
  ServingState* const state_;
  const bool terminal_;
  std::string stage_;
  absl::Time drawn_ = absl::InfinitePast();
  bool line_open_ = false;
};

}  // namespace brigade::runtime
