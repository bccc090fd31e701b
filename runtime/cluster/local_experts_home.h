// The coordinator's own experts: used while no worker is there. Loading happens in the background
// and is reported to ClusterHost::local_loaded(), in one or several parts. Called by the control
// thread; both calls return at once and take effect in order.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/cluster/membership.h"

namespace brigade::runtime {

class LocalExpertsHome {
 public:
  virtual ~LocalExpertsHome() = default;
  virtual void load(std::vector<ExpertKey> keys) = 0;
  // No view names the coordinator for them any more, and no step uses them.
  virtual void release(std::vector<ExpertKey> keys) = 0;
  // Any thread.
  virtual size_t resident_bytes() const = 0;
};

}  // namespace brigade::runtime
