#include "cluster_file/duration_and_size.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace brigade::cluster_file {
namespace {

constexpr char kSizeUnits[] = "KMGT";

absl::Status bad_duration(const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" is no duration; write a number and a unit, such as 500ms, 2s, 10m"));
}

absl::Status bad_size(const std::string& text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no size; write bytes, or 512M, 4G"));
}

}  // namespace

absl::StatusOr<absl::Duration> parse_duration(const std::string& text) {
  absl::Duration duration;
  // Abseil also takes "inf", "+2s" and a bare "0".
  if (text.find_first_not_of("-.0123456789hmsu") != std::string::npos || text == "0" ||
      text == "-0" || !absl::ParseDuration(text, &duration) ||
      duration == absl::InfiniteDuration() || duration == -absl::InfiniteDuration()) {
    return bad_duration(text);
  }
  return duration;
}

std::string print_duration(absl::Duration duration) {
  if (duration == absl::ZeroDuration()) return "0s";
  return absl::FormatDuration(duration);
}

absl::StatusOr<int64_t> parse_size(const std::string& text) {
  std::string digits = text;
  if (digits.size() > 1 && (digits.back() == 'B' || digits.back() == 'b')) digits.pop_back();
  int shift = 0;
  for (int unit = 0; kSizeUnits[unit] != '\0'; ++unit) {
    if (digits.empty() || (digits.back() & ~0x20) != kSizeUnits[unit]) continue;
    shift = 10 * (unit + 1);
    digits.pop_back();
    break;
  }
  int64_t value = 0;
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) {
    return bad_size(text);
  }
  if (!absl::SimpleAtoi(digits, &value) || value > (std::numeric_limits<int64_t>::max() >> shift)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is larger than any memory"));
  }
  return value << shift;
}

std::string print_size(int64_t bytes) {
  for (int unit = 3; unit >= 0 && bytes > 0; --unit) {
    const int64_t one = int64_t{1} << (10 * (unit + 1));
    if (bytes % one == 0) return absl::StrCat(bytes / one, std::string(1, kSizeUnits[unit]));
  }
  return absl::StrCat(bytes);
}

}  // namespace brigade::cluster_file
