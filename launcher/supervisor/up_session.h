// `brigade up` from the plan on: the supervisor with its folder, socket, signals and display. Runs
// in the calling thread until nothing of the cluster runs any more.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "launcher/supervisor/launch_plan.h"
#include "launcher/supervisor/state_folder.h"

namespace brigade::launcher {

struct UpOptions {
  bool color = true;        // on a terminal
  bool stream_logs = true;  // once everything is up
};

// OK: it was up and ended in order. CANCELLED: interrupted before it was up. ABORTED and
// DEADLINE_EXCEEDED say what failed. `on_ready` is called once, when everything is up.
absl::Status run_cluster(const LaunchPlan& plan, StateFolder& folder, const UpOptions& options,
                         const std::function<void()>& on_ready);

// The same in a process of its own, in its own session. Returns in the calling process once
// everything is up (OK) or has failed. Call before there is a thread.
absl::Status run_cluster_detached(const LaunchPlan& plan, StateFolder& folder,
                                  const UpOptions& options);

}  // namespace brigade::launcher
