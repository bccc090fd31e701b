// Speculation as `brigade status` shows it: acceptance, wait, depth, and the draft workers. Pure
// function.
#pragma once

#include <string>

#include "brigade/v1/generation.pb.h"

namespace brigade::launcher {

// Empty while nobody wanted drafts and draft workers are not taken.
std::string drafting_table(const v1::Drafting& drafting, const v1::Load& load);

}  // namespace brigade::launcher
