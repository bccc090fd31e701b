// One line of JSON for each event of an answer, as `brigade generate --json` prints them. Pure
// functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "brigade/v1/generation.pb.h"

namespace brigade::launcher {

// All end in a newline. Token pieces are base64: they may be part of a character.
std::string to_json_line(const v1::Started& started);
std::string to_json_line(const v1::Token& token);
std::string to_json_line(const v1::Finished& finished);
std::string retry_json_line(const absl::Status& why, absl::Duration delay);
std::string error_json_line(const absl::Status& status);

}  // namespace brigade::launcher
