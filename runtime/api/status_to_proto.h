// The answer to GetStatus: state, model and load in numbers. Pure function of its arguments.
#pragma once

#include <cstddef>

#include "brigade/v1/generation.pb.h"
#include "runtime/api/rate_meter.h"
#include "runtime/api/serving_state.h"

namespace brigade::runtime {

v1::GetStatusResponse status_to_proto(const ServingState& state, const RateMeter::Rates& rates,
                                      size_t open_calls);

}  // namespace brigade::runtime
