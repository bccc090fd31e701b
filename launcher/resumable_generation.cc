#include "launcher/resumable_generation.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace brigade::launcher {
namespace {

constexpr absl::Duration kInterruptInterval = absl::Milliseconds(20);

// False when interrupted meanwhile.
bool wait(absl::Duration delay, const std::atomic<bool>* interrupted) {
  const absl::Time until = absl::Now() + delay;
  while (absl::Now() < until) {
    if (interrupted != nullptr && *interrupted) return false;
    absl::SleepFor(std::min(kInterruptInterval, until - absl::Now()));
  }
  return true;
}

}  // namespace

ResumableGeneration::ResumableGeneration(
    Client* client, v1::GenerateRequest request, ResumeOptions options,
    std::function<bool(const v1::GenerateResponse&)> on_message,
    std::function<void(const absl::Status&, absl::Duration)> on_retry)
    : client_(client),
      request_(std::move(request)),
      options_(options),
      on_message_(std::move(on_message)),
      on_retry_(std::move(on_retry)) {}

absl::Status ResumableGeneration::run(absl::Time deadline, const std::atomic<bool>* interrupted) {
  while (true) {
    const absl::Status status = client_->generate(
        request_, deadline, [this](const v1::GenerateResponse& message) { return take(message); },
        interrupted);
    if (interrupted != nullptr && *interrupted) return absl::CancelledError("interrupted");
    if (status.ok() || !can_retry(status)) return status;
    const absl::Duration delay =
        std::min(options_.max_delay, options_.first_delay * static_cast<double>(1 << failures_));
    ++failures_;
    if (absl::Now() + delay >= deadline) return status;
    on_retry_(status, delay);
    if (!wait(delay, interrupted)) return absl::CancelledError("interrupted");
    if (any_token_) ++resumptions_;
  }
}

bool ResumableGeneration::take(const v1::GenerateResponse& message) {
  if (message.has_started()) {
    // From here on every attempt draws the same random numbers under the same limits.
    request_.mutable_sampling()->set_seed(message.started().settings().seed());
    request_.set_max_tokens(message.started().settings().max_tokens());
    if (std::exchange(started_, true)) return true;
  }
  if (message.has_token()) {
    request_.add_generated_so_far(message.token().id());
    any_token_ = true;
    failures_ = 0;
  }
  return on_message_(message);
}

bool ResumableGeneration::can_retry(const absl::Status& status) const {
  if (failures_ >= std::min(options_.max_retries, 20)) return false;
  // Several sequences cannot be resumed, only begun.
  if (any_token_ && request_.num_sequences() > 1) return false;
  // What gRPC 1.51 says when a connection goes away under a stream.
  const bool broken =
      status.code() == absl::StatusCode::kUnknown && status.message() == "Stream removed";
  return status.code() == absl::StatusCode::kUnavailable || broken;
}

}  // namespace brigade::launcher
