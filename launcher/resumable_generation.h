// One request carried to its end over broken streams: what has arrived is sent back as
// generated_so_far with the same seed, so the answer goes on as if nothing had happened. Used by
// one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "brigade/v1/generation.pb.h"
#include "launcher/client.h"

namespace brigade::launcher {

struct ResumeOptions {
  int max_retries = 8;  // in a row without a new token
  absl::Duration first_delay = absl::Milliseconds(100);
  absl::Duration max_delay = absl::Seconds(5);
};

class ResumableGeneration {
 public:
  // `on_message` sees every message once, in order; of the Started messages the first only.
  // `on_retry` hears why and how long the wait is.
  ResumableGeneration(Client* client, v1::GenerateRequest request, ResumeOptions options,
                      std::function<bool(const v1::GenerateResponse&)> on_message,
                      std::function<void(const absl::Status&, absl::Duration)> on_retry);

  // UNAVAILABLE when the retries are used up; CANCELLED when *interrupted.
  absl::Status run(absl::Time deadline, const std::atomic<bool>* interrupted);

  int resumptions() const { return resumptions_; }

 private:
  bool take(const v1::GenerateResponse& message);
  bool can_retry(const absl::Status& status) const;

  Client* const client_;
  v1::GenerateRequest request_;
  const ResumeOptions options_;
  const std::function<bool(const v1::GenerateResponse&)> on_message_;
  const std::function<void(const absl::Status&, absl::Duration)> on_retry_;
  bool started_ = false;
  bool any_token_ = false;
  int failures_ = 0;  // since the last token
  int resumptions_ = 0;
};

}  // namespace brigade::launcher
