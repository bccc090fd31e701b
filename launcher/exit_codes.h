// Exit codes of `brigade`, the same for every verb; shown by --help.
#pragma once

#include "absl/status/status.h"

namespace brigade::launcher {

enum ExitCode : int {
  kOk = 0,
  kRequestFailed = 1,  // the server answered with an error
  kBadUsage = 2,       // flags, files or a request the server refuses as invalid
  kUnreachable = 3,    // no server there, or it went away and did not come back
  kInterrupted = 4,    // Ctrl-C
};

inline ExitCode exit_code_of(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kOk;
    case absl::StatusCode::kInvalidArgument:
      return kBadUsage;
    case absl::StatusCode::kUnavailable:
      return kUnreachable;
    case absl::StatusCode::kCancelled:
      return kInterrupted;
    default:
      return kRequestFailed;
  }
}

inline constexpr const char* kExitCodesHelp =
    "Exit codes: 0 done, 1 the request failed, 2 bad usage or a request refused as invalid,\n"
    "3 the server cannot be reached, 4 interrupted.";

}  // namespace brigade::launcher
