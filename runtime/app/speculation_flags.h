// The coordinator's settings for speculation: whether drafts are verified where a request leaves it
// open, and how many. Flags of EngineConfig; read before any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "runtime/engine/engine_config.h"

namespace CLI {
class App;
}

namespace brigade::runtime {

// What --speculation says: "" (not given), "off", "auto" or a number of drafts.
void add_speculation_flags(CLI::App& app, std::string* speculation, int* max_draft_depth);

// INVALID_ARGUMENT names the flag. Not given: auto where draft workers may join, else off.
absl::Status apply_speculation(const std::string& speculation, bool drafts, EngineConfig* config);

// "auto, at most 8 drafts".
std::string describe_speculation(const EngineConfig& config);

}  // namespace brigade::runtime
