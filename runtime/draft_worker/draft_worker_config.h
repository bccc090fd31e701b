// The draft worker's settings: one typed value from the command line and, if one is named, the
// cluster file; checked once, printed at start. Data; made before any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/device/device_settings.h"
#include "runtime/joining/dial.h"

namespace brigade::runtime::draft_worker {

struct DraftWorkerConfig {
  std::string cluster_file;  // says all of the below for the draft `name`; flags win over it
  std::string name;          // shown in the coordinator's status; empty: host and process id
  std::string model;         // folder of a dense checkpoint with the target's vocabulary
  DialOptions dial;
  bool insecure = false;  // dial another host without TLS and token
  DeviceSettings device;
  int threads = 0;  // 0: one a core
  int max_sequences = 32;
  int max_context = 0;     // tokens of a sequence; 0: the model's
  int token_budget = 128;  // rows of a step
  int64_t kv_memory_bytes = int64_t{256} << 20;
  absl::Duration rejoin_timeout = absl::Minutes(10);
  bool exit_on_stdin_eof = false;
};

struct ParsedDraftFlags {
  DraftWorkerConfig config;
  int exit_code = -1;  // 0 or more: leave with it (help was printed, or the usage was wrong)
};
ParsedDraftFlags parse_draft_flags(int argc, char** argv);

// INVALID_ARGUMENT names the flag. Fills in threads and name.
absl::Status check(DraftWorkerConfig* config);

// One line a setting.
std::string describe(const DraftWorkerConfig& config);

}  // namespace brigade::runtime::draft_worker
