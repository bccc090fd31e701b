#include "runtime/joining/redial.h"

#include <algorithm>

namespace brigade::runtime {
namespace {

constexpr absl::Duration kRepeatNote = absl::Seconds(30);

}  // namespace

std::string text_of(const absl::Status& status) {
  const std::string message(status.message());
  return message.empty() ? absl::StatusCodeToString(status.code()) : message;
}

bool is_refusal(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

absl::Duration redial_delay(int failures, absl::Duration first, absl::Duration longest,
                            uint64_t random) {
  const double doubled = static_cast<double>(1 << std::clamp(failures, 0, 20));
  const double jitter = 0.5 + 0.5 * static_cast<double>(random >> 11) * 0x1p-53;
  return std::min(longest, first * doubled) * jitter;
}

bool RepeatedNote::worth_saying(const std::string& text, absl::Time now) {
  if (text == text_ && now - said_at_ < kRepeatNote) return false;
  text_ = text;
  said_at_ = now;
  return true;
}

}  // namespace brigade::runtime
