#include "runtime/api/serving_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::runtime {

ServingState::ServingState() : started_at_(absl::Now()) {}

void ServingState::set_progress(Progress progress) {
  std::lock_guard lock(mutex_);
  progress_ = std::move(progress);
}

void ServingState::set_model(std::shared_ptr<const ServedModel> model) {
  std::lock_guard lock(mutex_);
  model_ = std::move(model);
}

void ServingState::set_generator(std::shared_ptr<Generator> generator) {
  std::lock_guard lock(mutex_);
  CHECK(model_ != nullptr);
  generator_ = std::move(generator);
  if (draining_) generator_->start_drain();
}

void ServingState::start_drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
  if (generator_ != nullptr) generator_->start_drain();
}

ServingState::Health ServingState::health() const {
  std::unique_lock lock(mutex_);
  Health health;
  health.draining = draining_;
  const std::shared_ptr<Generator> generator = generator_;
  if (generator == nullptr) {
    health.reason = absl::StrCat("the model is loading: ", progress_.stage);
    if (progress_.total > 0) {
      absl::StrAppend(&health.reason, ", ", progress_.done, " of ", progress_.total, " bytes");
    }
    return health;
  }
  lock.unlock();
  const GeneratorStatus status = generator->status();
  health.live = status.step_loop_alive;
  health.draining |= status.draining;
  health.ready = status.ready && status.step_loop_alive && !health.draining;
  if (!status.step_loop_alive) {
    health.reason = "the step loop has work and makes no progress";
  } else if (health.draining) {
    health.reason = "draining: the server is stopping";
  } else if (!status.ready) {
    health.reason = status.not_ready_reason.empty() ? "warming up" : status.not_ready_reason;
  }
  return health;
}

ServingState::Progress ServingState::progress() const {
  std::lock_guard lock(mutex_);
  return progress_;
}

std::shared_ptr<const ServedModel> ServingState::model() const {
  std::lock_guard lock(mutex_);
  return model_;
}

std::shared_ptr<Generator> ServingState::generator() const {
  std::lock_guard lock(mutex_);
  return generator_;
}

absl::StatusOr<ServingState::Serving> ServingState::admit() const {
  const Health now = health();
  if (!now.ready) return absl::UnavailableError(now.reason);
  std::lock_guard lock(mutex_);
  return Serving{model_, generator_};
}

}  // namespace brigade::runtime
