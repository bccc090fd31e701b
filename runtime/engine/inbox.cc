#include "runtime/engine/inbox.h"

#include <utility>

#include "kernels/core/check.h"

namespace brigade::runtime {

Inbox::Inbox(const AdmissionLimits& limits) : admission_(limits) {}

absl::Status Inbox::enter(const GenerateRequest& request, AdmissionTicket* ticket) {
  const auto known = static_cast<int64_t>(request.prompt.size() + request.generated_so_far.size());
  std::lock_guard lock(mutex_);
  absl::Status status;
  if (stopped_) {
    status = absl::UnavailableError("the server has stopped; retry elsewhere");
  } else if (draining_) {
    status =
        absl::UnavailableError("the server is draining and takes no new requests; retry elsewhere");
  } else if (!open_) {
    status = absl::UnavailableError("not ready: " + closed_reason_);
  } else {
    status = admission_.enter(request.num_sequences, known, max_kv_positions(request), ticket);
  }
  ++(status.ok() ? accepted_ : rejected_);
  return status;
}

bool Inbox::deliver(std::unique_ptr<ActiveRequest> request) {
  std::lock_guard lock(mutex_);
  if (stopped_) {
    admission_.left_queue(&request->ticket);
    admission_.ended(request->ticket);
    --accepted_;
    ++rejected_;
    return false;
  }
  arrived_.push_back(std::move(request));
  return true;
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
