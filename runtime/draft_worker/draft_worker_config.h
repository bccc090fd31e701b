// The draft worker's settings: one typed value from the command line and, if one is named, the
// cluster file; checked once, printed at start. Data; made before any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/joining/worker_settings.h"

namespace brigade::runtime::draft_worker {

struct DraftWorkerConfig : WorkerSettings {
  int max_sequences = 32;
  int max_context = 0;     // tokens of a sequence; 0: the model's
  int token_budget = 128;  // rows of a step
  int64_t kv_memory_bytes = int64_t{256} << 20;
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
