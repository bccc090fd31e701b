// The door between the threads that submit and the step thread: a bounded queue of new requests
// with the admission accounts under one lock, so that a refusal is immediate and does not depend on
// what the step thread does. When it is full the caller gets RESOURCE_EXHAUSTED. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/engine/sequence.h"
#include "runtime/scheduler/admission.h"

namespace brigade::runtime {

class Inbox {
 public:
  explicit Inbox(const AdmissionLimits& limits);

  // Submitting threads. check() refuses early, before anything is built for the request; it books
  // nothing. deliver() decides: it books a place and hands the request over in one step, so that
  // requests start in the order in which their places were booked. A refusal counts once.
  absl::Status check(const GenerateRequest& request);
  absl::Status deliver(std::unique_ptr<ActiveRequest> request);

  // Step thread.
  void take(
      std::vector<std::unique_ptr<ActiveRequest>>* arrived);  // swaps; `arrived` must be empty
  void left_queue(AdmissionTicket* ticket);
  void ended(const AdmissionTicket& ticket);

  void open();                             // ready: enter() works from now on
  void close_for(const std::string& why);  // until open() it answers UNAVAILABLE with this reason
  void start_drain();
  void stop();

  bool draining() const;
  int live_requests() const;
  int64_t accepted() const;
  int64_t rejected() const;

 private:
  absl::Status try_enter(const GenerateRequest& request, AdmissionTicket* ticket);

  mutable std::mutex mutex_;
  Admission admission_;
  std::vector<std::unique_ptr<ActiveRequest>> arrived_;
  std::string closed_reason_ = "the engine has not started";
  bool open_ = false;
  bool draining_ = false;
  bool stopped_ = false;
  int64_t accepted_ = 0;
  int64_t rejected_ = 0;
};

}  // namespace brigade::runtime
