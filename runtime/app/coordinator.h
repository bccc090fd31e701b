// The coordinator process: door first, then the model behind it, until a signal ends it. One per
// process; run() is called once, by the main thread.
#pragma once

#include "runtime/app/config.h"
#include "runtime/app/shutdown_signals.h"

namespace brigade::runtime {

// Serves until a signal. Returns the exit code; errors were printed. `config` has passed check().
int run_coordinator(const CoordinatorConfig& config, ShutdownSignals& signals);

}  // namespace brigade::runtime
