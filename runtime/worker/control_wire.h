// Control messages to and from the wire. Pure functions; what comes in is checked for what its
// types cannot say.
#pragma once

#include "absl/status/statusor.h"
#include "runtime/worker/control_messages.h"

namespace brigade::v1 {
class CoordinatorMessage;
class WorkerMessage;
}  // namespace brigade::v1

namespace brigade::runtime::worker {

void to_wire(const WorkerMessage& message, v1::WorkerMessage* wire);

// INVALID_ARGUMENT names the field. UNIMPLEMENTED: a kind this version does not know.
absl::StatusOr<CoordinatorMessage> from_wire(const v1::CoordinatorMessage& wire);

}  // namespace brigade::runtime::worker
