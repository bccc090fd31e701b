// What `brigade ps`, `down` and `restart` say to a supervisor over its socket: one line of JSON
// each way. Data and pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/supervisor/supervisor.h"

namespace brigade::launcher {

struct ControlRequest {
  std::string verb;     // "ps", "down", "kill", "restart"
  std::string process;  // of restart
};

struct ControlAnswer {
  absl::Status status;
  std::string api;                // address; empty until it is known
  double stop_limit_seconds = 0;  // an ordered stop takes at most so long
  std::vector<ProcessReport> processes;
};

std::string to_line(const ControlRequest& request);
std::string to_line(const ControlAnswer& answer);
// INVALID_ARGUMENT for what to_line() does not write.
absl::StatusOr<ControlRequest> parse_request(const std::string& line);
absl::StatusOr<ControlAnswer> parse_answer(const std::string& line);

// {"api": ..., "processes": [...]}, indented, for scripts.
std::string to_json(const ControlAnswer& answer);

}  // namespace brigade::launcher
