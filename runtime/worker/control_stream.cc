#include "runtime/worker/control_stream.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "brigade/v1/cluster.grpc.pb.h"
#include "kernels/core/status.h"
#include "runtime/worker/control_wire.h"

namespace brigade::runtime::worker {
namespace {

absl::Status to_absl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

// Lives until OnDone. A hold keeps the call open for operations from outside until reading has
// ended; each of them takes one more, so that the call does not end under it. No operation is
// started with the mutex held: gRPC may run the reaction within it.
class ControlStream::Call final
    : public grpc::ClientBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage> {
 public:
  Call(std::shared_ptr<grpc::Channel> channel, const std::string& bearer, Callbacks callbacks)
      : stub_(v1::WorkerControl::NewStub(channel)), callbacks_(std::move(callbacks)) {
    if (!bearer.empty()) context_.AddMetadata("authorization", bearer);
  }

  void start(const Registration& registration) {
    stub_->async()->Join(&context_, this);
    AddHold();
    (void)send(registration);
    next();
    StartCall();
  }

  absl::Status send(const WorkerMessage& message) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (reading_ended_) return absl::UnavailableError("the stream has ended");
      if (queue_.size() >= kMaxQueued)
        return absl::ResourceExhaustedError("it does not read what this worker reports");
      to_wire(message, &queue_.emplace_back());
      if (queue_.size() > 1) return absl::OkStatus();
      AddHold();
    }
    StartWrite(&queue_.front());
    RemoveHold();
    return absl::OkStatus();
  }

  void next() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (reading_ended_ || reading_) return;
      reading_ = true;
      AddHold();
    }
    StartRead(&incoming_);
    RemoveHold();
  }

  void cancel_and_wait() {
    context_.TryCancel();
    bool nothing_to_come = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      cancelled_ = true;
      nothing_to_come = !reading_;
    }
    if (nothing_to_come) end_reading();
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return done_; });
  }

  void OnReadDone(bool ok) override {
    bool over = !ok;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      reading_ = false;
      over = over || cancelled_;
    }
    if (over) return end_reading();
    absl::StatusOr<CoordinatorMessage> message = from_wire(incoming_);
    if (message.ok()) return callbacks_.on_message(*std::move(message));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      fault_ = message.status();
    }
    context_.TryCancel();
    end_reading();
  }

  // After a failed write the read fails too and tells why.
  void OnWriteDone(bool ok) override {
    if (!ok) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.pop_front();
      if (queue_.empty() || reading_ended_) return;
    }
    StartWrite(&queue_.front());
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status why = to_absl(status);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // What the coordinator did wrong, not that we cut the call for it; no refusal of its own.
      if (!fault_.ok()) why = absl::InternalError(std::string(fault_.message()));
    }
    callbacks_.on_ended(why);
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    ended_.notify_all();
  }

 private:
  void end_reading() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (std::exchange(reading_ended_, true)) return;
    }
    RemoveHold();
  }

  const std::unique_ptr<v1::WorkerControl::Stub> stub_;
  const Callbacks callbacks_;
  grpc::ClientContext context_;
  v1::CoordinatorMessage incoming_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::deque<v1::WorkerMessage> queue_;  // the first one is being written
  absl::Status fault_;
  bool reading_ = false, reading_ended_ = false, cancelled_ = false, done_ = false;
};

absl::StatusOr<std::unique_ptr<ControlStream>> ControlStream::dial(const DialOptions& options,
                                                                   const Registration& registration,
                                                                   Callbacks callbacks) {
  ASSIGN_OR_RETURN(const auto channel, open_channel(options));
  ASSIGN_OR_RETURN(const std::string bearer, bearer_of(options));
  auto call = std::make_unique<Call>(channel, bearer, std::move(callbacks));
  call->start(registration);
  return std::unique_ptr<ControlStream>(new ControlStream(std::move(call)));
}

ControlStream::ControlStream(std::unique_ptr<Call> call) : call_(std::move(call)) {}
ControlStream::~ControlStream() { call_->cancel_and_wait(); }
void ControlStream::next() { call_->next(); }
absl::Status ControlStream::send(const WorkerMessage& message) { return call_->send(message); }

}  // namespace brigade::runtime::worker
