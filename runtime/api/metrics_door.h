// The HTTP port on which metrics are scraped. Open from create() until it is destroyed, which takes
// no longer than a scrape under way. For metrics.cc, which alone knows what is shown there.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"

namespace prometheus {
class Exposer;
}

namespace brigade::runtime {

class MetricsDoor {
 public:
  // `address`: host:port, port 0: any free one. UNAVAILABLE when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsDoor>> open(const std::string& address);
  ~MetricsDoor();

  int port() const { return port_; }
  void show(const std::weak_ptr<prometheus::Collectable>& metrics);

 private:
  MetricsDoor(std::unique_ptr<prometheus::Exposer> exposer, const std::string& host);
  void visit() const;

  std::unique_ptr<prometheus::Exposer> exposer_;
  const std::string host_;
  const int port_;
};

}  // namespace brigade::runtime
