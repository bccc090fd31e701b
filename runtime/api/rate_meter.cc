#include "runtime/api/rate_meter.h"

#include <algorithm>

namespace brigade::runtime {

void RateMeter::add_sample(absl::Time now, int64_t prompt_tokens, int64_t generated_tokens) {
  std::lock_guard lock(mutex_);
  if (count_ > 0 && now - ring_[(count_ - 1) % kSamples].at < kInterval) return;
  ring_[count_ % kSamples] = {now, prompt_tokens, generated_tokens};
  ++count_;
}

RateMeter::Rates RateMeter::rates() const {
  std::lock_guard lock(mutex_);
  if (count_ < 2) return {};
  const Sample& newest = ring_[(count_ - 1) % kSamples];
  const Sample& oldest = ring_[(count_ - std::min(count_, kSamples)) % kSamples];
  const double seconds = absl::ToDoubleSeconds(newest.at - oldest.at);
  return {static_cast<double>(newest.prompt - oldest.prompt) / seconds,
          static_cast<double>(newest.generated - oldest.generated) / seconds};
}

}  // namespace brigade::runtime
