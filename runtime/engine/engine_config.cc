#include "runtime/engine/engine_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

absl::Status check_range(const std::string& key, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("engine.", key, " is ", value, ", must be from ", low, " to ", high));
}

absl::Status check_positive(const std::string& key, absl::Duration value) {
  if (value >= absl::Milliseconds(1)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("engine.", key, " is ", absl::FormatDuration(value), ", must be at least 1ms"));
}

}  // namespace

absl::Status validate(const EngineConfig& config) {
  RETURN_IF_ERROR(check_range("max_running_sequences", config.max_running_sequences, 1, 4096));
  RETURN_IF_ERROR(check_range("max_waiting_requests", config.max_waiting_requests, 0, 1000000));
  RETURN_IF_ERROR(
      check_range("max_waiting_tokens", config.max_waiting_tokens, 1, int64_t{1} << 40));
  RETURN_IF_ERROR(check_range("max_rows", config.max_rows, 0, 65536));
  RETURN_IF_ERROR(check_range("prefill_chunk", config.prefill_chunk, 1, 65536));
  RETURN_IF_ERROR(check_range("prefill_reserve", config.prefill_reserve, 1, 65536));
  RETURN_IF_ERROR(check_range("max_preemptions", config.max_preemptions, 1, 1000));
  RETURN_IF_ERROR(check_range("stream_capacity", config.stream_capacity, 1, 65536));
  RETURN_IF_ERROR(check_range("max_draft_depth", config.max_draft_depth, 0, 16));
  RETURN_IF_ERROR(check_range("speculation.depth", config.speculation.depth, 0, 16));
  RETURN_IF_ERROR(check_positive("queue_timeout", config.queue_timeout));
  RETURN_IF_ERROR(check_positive("reader_timeout", config.reader_timeout));
  RETURN_IF_ERROR(check_positive("warm_up_timeout", config.warm_up_timeout));
  RETURN_IF_ERROR(check_positive("parking_retry", config.parking_retry));
  return check_positive("stall_limit", config.stall_limit);
}

}  // namespace brigade::runtime
