// Prometheus metrics on a port of their own: counters and gauges read from the generator when
// scraped, histograms fed by the calls. The number of series is fixed by the model's layers, not by
// experts, ranks or clients; rows per expert are in GetStatus. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/api/request_observer.h"
#include "runtime/api/serving_state.h"

namespace brigade::runtime {

class Metrics final : public RequestObserver {
 public:
  // `state` outlives this.
  explicit Metrics(const ServingState* state);
  ~Metrics() override;

  void first_token(absl::Duration since_arrival) override;
  void token_gap(absl::Duration gap) override;
  void call_ended(const absl::Status& status, absl::Duration since_arrival) override;

  // Serves /metrics over HTTP on `address` (host:port, port 0: any free one), which must be
  // loopback unless `insecure`. Returns the port. UNAVAILABLE when it cannot be bound.
  absl::StatusOr<int> listen(const std::string& address, bool insecure);

  // What a scrape would get.
  std::string text() const;

 private:
  struct Parts;
  std::shared_ptr<Parts> parts_;
};

}  // namespace brigade::runtime
