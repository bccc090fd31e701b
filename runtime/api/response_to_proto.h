// From committed tokens to the wire's messages. Pure functions, any thread.
#pragma once

#include "brigade/v1/generation.pb.h"
#include "runtime/api/served_model.h"
#include "runtime/stream/token_stream.h"

namespace brigade::runtime {

// `event.token` must be present; carries the event's text.
v1::Token token_to_proto(const TokenEvent& event, const ServedModel& model);

// `event.finish` must be kStop or kLength. Carries the text of an event that has no token.
v1::Finished finished_to_proto(const TokenEvent& event, const v1::EffectiveSettings& settings);

}  // namespace brigade::runtime
