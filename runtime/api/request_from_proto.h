// From the wire's GenerateRequest to the request the engine takes: narrows numbers without
// wrapping, fills in defaults, tokenizes the text and checks everything. Runs on the gRPC thread of
// the call.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "brigade/v1/generation.pb.h"
#include "runtime/api/served_model.h"
#include "runtime/request/request.h"

namespace brigade::runtime {

// INVALID_ARGUMENT names the field as the proto file spells it and its bound.
absl::StatusOr<GenerateRequest> request_from_proto(const v1::GenerateRequest& message,
                                                   const ServedModel& model, absl::Time deadline);

// What was settled on, for the answer.
v1::EffectiveSettings effective_settings(const GenerateRequest& request);

}  // namespace brigade::runtime
