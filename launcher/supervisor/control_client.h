// One question to a supervisor over its control socket. Blocking, with a deadline.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/supervisor/control_messages.h"

namespace brigade::launcher {

// The answer's own status is inside. UNAVAILABLE: nobody listens; DEADLINE_EXCEEDED: no answer.
absl::StatusOr<ControlAnswer> ask_supervisor(const std::string& folder,
                                             const ControlRequest& request, absl::Time deadline);

}  // namespace brigade::launcher
