// What stands behind an Event; one subclass a device with streams that run on their own. Private to
// kernels/core.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/core/device.h"

namespace brigade::kernels {

struct Event::State {
  virtual ~State() = default;
  virtual bool ready() = 0;
  virtual absl::Status wait_until(absl::Time deadline) = 0;
};

}  // namespace brigade::kernels
