// Ctrl-C as a flag. The first one asks the verb to stop in order; a second ends the process at
// once.
#pragma once

#include <atomic>

namespace brigade::launcher {

// Installs the handler for SIGINT and SIGTERM on first use.
const std::atomic<bool>& interrupt_flag();

}  // namespace brigade::launcher
