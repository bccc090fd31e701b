// One stream of a worker to its coordinator, from its start to its end, for any pair of messages:
// one message is delivered at a time and next() asks for another; those to send wait in a bounded
// queue. Reactions come on gRPC's threads and must not wait; everything else from the owner's
// thread. For the translation units that dial; the only header of ours that needs gRPC's reactors.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace brigade::runtime {

// Lives until OnDone. A hold keeps the call open for operations from outside until reading has
// ended; each of them takes one more, so that the call does not end under it. No operation is
// started with the mutex held: gRPC may run the reaction within it.
template <typename Outgoing, typename Incoming>
class PeerCall final : public grpc::ClientBidiReactor<Outgoing, Incoming> {
 public:
  struct Reactions {
    // Not OK: what the coordinator said is wrong, and the call is cut.
    std::function<absl::Status(const Incoming& message)> on_message;
    std::function<void()> on_written;  // one message; may be empty
    // Once, the last one.
    std::function<void(const absl::Status& why)> on_ended;
  };
  PeerCall(size_t max_queued, const std::string& bearer, Reactions reactions)
      : max_queued_(max_queued), reactions_(std::move(reactions)) {
    if (!bearer.empty()) context_.AddMetadata("authorization", bearer);
  }

  grpc::ClientContext& context() { return context_; }
  // After the stub was told of this reactor.
  void start(Outgoing first) {
    this->AddHold();
    (void)send(std::move(first));
    next();
    this->StartCall();
  }

  // UNAVAILABLE: it has ended. RESOURCE_EXHAUSTED: the queue is full.
  absl::Status send(Outgoing message) {
    {
      std::lock_guard lock(mutex_);
      if (reading_ended_) return absl::UnavailableError("the stream has ended");
      if (queue_.size() >= max_queued_) {
        return absl::ResourceExhaustedError("it does not read what this worker reports");
      }
      queue_.push_back(std::move(message));
      if (queue_.size() > 1) return absl::OkStatus();
      this->AddHold();
    }
    this->StartWrite(&queue_.front());
    this->RemoveHold();
    return absl::OkStatus();
  }
  // No write is under way.
  bool all_written() const {
    std::lock_guard lock(mutex_);
    return queue_.empty();
  }

  void next() {
    {
      std::lock_guard lock(mutex_);
      if (reading_ended_ || reading_) return;
      reading_ = true;
      this->AddHold();
    }
    this->StartRead(&incoming_);
    this->RemoveHold();
  }

  void cancel_and_wait() {
    context_.TryCancel();
    bool nothing_to_come = false;
    {
      std::lock_guard lock(mutex_);
      cancelled_ = true;
      nothing_to_come = !reading_;
    }
    if (nothing_to_come) end_reading();
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return done_; });
  }

  void OnReadDone(bool ok) override {
    bool over = !ok;
    {
      std::lock_guard lock(mutex_);
      reading_ = false;
      over = over || cancelled_;
    }
    if (over) return end_reading();
    absl::Status fault = reactions_.on_message(incoming_);
    if (fault.ok()) return;
    {
      std::lock_guard lock(mutex_);
      fault_ = std::move(fault);
    }
    context_.TryCancel();
    end_reading();
  }

  // After a failed write the read fails too and tells why.
  void OnWriteDone(bool ok) override {
    if (!ok) return;
    bool more = false;
    {
      std::lock_guard lock(mutex_);
      queue_.pop_front();
      more = !queue_.empty() && !reading_ended_;
    }
    if (more) this->StartWrite(&queue_.front());
    if (reactions_.on_written) reactions_.on_written();
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status why(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    {
      std::lock_guard lock(mutex_);
      // What the coordinator did wrong, not that we cut the call for it; no refusal of its own.
      if (!fault_.ok()) why = absl::InternalError(std::string(fault_.message()));
    }
    reactions_.on_ended(why);
    std::lock_guard lock(mutex_);
    done_ = true;
    ended_.notify_all();
  }

 private:
  void end_reading() {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(reading_ended_, true)) return;
    }
    this->RemoveHold();
  }

  const size_t max_queued_;
  const Reactions reactions_;
  grpc::ClientContext context_;
  Incoming incoming_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::deque<Outgoing> queue_;  // the first one is being written
  absl::Status fault_;
  bool reading_ = false, reading_ended_ = false, cancelled_ = false, done_ = false;
};

}  // namespace brigade::runtime
