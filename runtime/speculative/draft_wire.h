// Between the draft stream's plain messages and their wire form, brigade/v1/draft.proto. Whatever
// comes in is checked against DraftBounds here, so that no later stage meets a number that does not
// fit. Pure functions; threads of the stream.
#pragma once

#include "absl/status/statusor.h"
#include "brigade/v1/draft.pb.h"
#include "runtime/speculative/draft_messages.h"

namespace brigade::runtime {

void to_wire(const DraftWorkerSays& message, v1::DraftWorkerMessage* wire);
void to_wire(const DraftCoordinatorSays& message, v1::DraftCoordinatorMessage* wire);

// INVALID_ARGUMENT names the field and its bound.
absl::StatusOr<DraftWorkerSays> from_wire(const v1::DraftWorkerMessage& wire);
absl::StatusOr<DraftCoordinatorSays> from_wire(const v1::DraftCoordinatorMessage& wire);

}  // namespace brigade::runtime
