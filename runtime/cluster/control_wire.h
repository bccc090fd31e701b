// Between the control plane's plain values and their wire form. Pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "brigade/v1/cluster.pb.h"
#include "runtime/cluster/control_messages.h"

namespace brigade::runtime {

// INVALID_ARGUMENT for an empty message, or ids that fit no int.
absl::StatusOr<WorkerSays> from_wire(const v1::WorkerMessage& message);

v1::CoordinatorMessage to_wire(const CoordinatorSays& message);

}  // namespace brigade::runtime
