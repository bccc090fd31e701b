// The expert worker's settings: one typed value from the command line and, if one is named, the
// cluster file; checked once, printed at start. Data; made before any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/core/dtype.h"
#include "runtime/joining/worker_settings.h"

namespace brigade::runtime::worker {

struct WorkerConfig : WorkerSettings {
  bool trusted_network = false;  // activations may cross the network unencrypted
  std::string data_interface;    // network device of the data plane; empty: loopback, or any
  std::string data_plane = "auto";  // see runtime/device/data_plane_choice.h
  int64_t memory_bytes = 0;      // for packed experts; 0: no limit
  std::string wire_dtype = "f32", kv_dtype = "f32";  // of the cluster; part of the numerics
  absl::Duration grace = absl::Seconds(30);
  std::string on_lost_coordinator = "wait";  // or "exit"
};

struct ParsedWorkerFlags {
  WorkerConfig config;
  int exit_code = -1;  // 0 or more: leave with it (help was printed, or the usage was wrong)
};
ParsedWorkerFlags parse_worker_flags(int argc, char** argv);

// INVALID_ARGUMENT names the flag. Fills in threads and name.
absl::Status check(WorkerConfig* config);

// One line a setting.
std::string describe(const WorkerConfig& config);

// Of a checked config.
kernels::DType dtype_of(const std::string& name);

}  // namespace brigade::runtime::worker
