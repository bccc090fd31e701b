// Waiting for a server that starts or loads its model, with its progress on the terminal.
#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "launcher/client.h"

namespace brigade::launcher {

// Ready by the health service. UNAVAILABLE with the last reason at the deadline; CANCELLED when
// *interrupted; other errors (a wrong token) at once.
absl::Status wait_until_ready(Client& client, absl::Time deadline,
                              const std::atomic<bool>& interrupted);

}  // namespace brigade::launcher
