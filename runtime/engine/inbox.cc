#include "runtime/engine/inbox.h"

#include <utility>

#include "kernels/core/check.h"

namespace brigade::runtime {

Inbox::Inbox(const AdmissionLimits& limits) : admission_(limits) {}

// Under the lock. A null ticket: only asks.
absl::Status Inbox::try_enter(const GenerateRequest& request, AdmissionTicket* ticket) {
  if (stopped_) return absl::UnavailableError("the server has stopped; retry elsewhere");
  if (draining_) {
    return absl::UnavailableError(
        "the server is draining and takes no new requests; retry elsewhere");
  }
  if (!open_) return absl::UnavailableError("not ready: " + closed_reason_);
  const auto known = static_cast<int64_t>(request.prompt.size() + request.generated_so_far.size());
  const int64_t positions = max_kv_positions(request);
  if (ticket == nullptr) return admission_.check(request.num_sequences, known, positions);
  return admission_.enter(request.num_sequences, known, positions, ticket);
}

absl::Status Inbox::check(const GenerateRequest& request) {
  std::lock_guard lock(mutex_);
  absl::Status status = try_enter(request, nullptr);
  if (!status.ok()) ++rejected_;
  return status;
}

absl::Status Inbox::deliver(std::unique_ptr<ActiveRequest> request) {
  std::lock_guard lock(mutex_);
  absl::Status status = try_enter(request->asked, &request->ticket);
  ++(status.ok() ? accepted_ : rejected_);
  if (status.ok()) arrived_.push_back(std::move(request));
  return status;
}

void Inbox::take(std::vector<std::unique_ptr<ActiveRequest>>* arrived) {
  CHECK(arrived->empty());
  std::lock_guard lock(mutex_);
  arrived->swap(arrived_);
}

void Inbox::left_queue(AdmissionTicket* ticket) {
  std::lock_guard lock(mutex_);
  admission_.left_queue(ticket);
}

void Inbox::ended(const AdmissionTicket& ticket) {
  std::lock_guard lock(mutex_);
  admission_.ended(ticket);
}

void Inbox::open() {
  std::lock_guard lock(mutex_);
  open_ = true;
}

void Inbox::close_for(const std::string& why) {
  std::lock_guard lock(mutex_);
  closed_reason_ = why;
  open_ = false;
}

void Inbox::start_drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

void Inbox::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
}

bool Inbox::draining() const {
  std::lock_guard lock(mutex_);
  return draining_;
}

int Inbox::live_requests() const {
  std::lock_guard lock(mutex_);
  return admission_.live_requests();
}

int64_t Inbox::accepted() const {
  std::lock_guard lock(mutex_);
  return accepted_;
}

int64_t Inbox::rejected() const {
  std::lock_guard lock(mutex_);
  return rejected_;
}

}  // namespace brigade::runtime
