// What the calls report for the metrics, so that they need not know how those are kept. Called from
// gRPC threads and the pump; implementations are thread-safe and quick.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace brigade::runtime {

class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  // Since the request arrived.
  virtual void first_token(absl::Duration since_arrival) = 0;
  // Between two tokens of one sequence.
  virtual void token_gap(absl::Duration gap) = 0;
  // A call ended, well or not.
  virtual void call_ended(const absl::Status& status, absl::Duration since_arrival) = 0;
};

}  // namespace brigade::runtime
