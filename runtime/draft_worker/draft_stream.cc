#include "runtime/draft_worker/draft_stream.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include "brigade/v1/draft.grpc.pb.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/speculative/draft_wire.h"

namespace brigade::runtime::draft_worker {
namespace {

absl::Status to_absl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

// Lives until OnDone. A hold keeps the call open for operations from outside until reading has
// ended; each of them takes one more, so that the call does not end under it. No operation is
// started with the mutex held: gRPC may run the reaction within it.
class DraftStream::Call final
    : public grpc::ClientBidiReactor<v1::DraftWorkerMessage, v1::DraftCoordinatorMessage> {
 public:
  Call(std::shared_ptr<grpc::Channel> channel, const std::string& bearer, Callbacks callbacks)
      : stub_(v1::DraftControl::NewStub(channel)), callbacks_(std::move(callbacks)) {
    if (!bearer.empty()) context_.AddMetadata("authorization", bearer);
  }

  void start(const DraftHello& hello) {
    stub_->async()->Draft(&context_, this);
    AddHold();
    send(hello);
    next();
    StartCall();
  }

  bool writable() const {
    std::lock_guard lock(mutex_);
    return !writing_;
  }

  void send(const DraftWorkerSays& message) {
    {
      std::lock_guard lock(mutex_);
      if (reading_ended_) return;
      CHECK(!writing_);
      writing_ = true;
      AddHold();
    }
    outgoing_.Clear();
    to_wire(message, &outgoing_);
    StartWrite(&outgoing_);
    RemoveHold();
  }

  void next() {
    {
      std::lock_guard lock(mutex_);
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
    absl::StatusOr<DraftCoordinatorSays> message = from_wire(incoming_);
    if (message.ok()) return callbacks_.on_message(*std::move(message));
    {
      std::lock_guard lock(mutex_);
      fault_ = message.status();
    }
    context_.TryCancel();
    end_reading();
  }

  // After a failed write the read fails too and tells why.
  void OnWriteDone(bool ok) override {
    if (!ok) return;
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
    }
    callbacks_.on_written();
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status why = to_absl(status);
    {
      std::lock_guard lock(mutex_);
      // What the coordinator did wrong, not that we cut the call for it; no refusal of its own.
      if (!fault_.ok()) why = absl::InternalError(std::string(fault_.message()));
    }
    callbacks_.on_ended(why);
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
    RemoveHold();
  }

  const std::unique_ptr<v1::DraftControl::Stub> stub_;
  const Callbacks callbacks_;
  grpc::ClientContext context_;
  v1::DraftCoordinatorMessage incoming_;
  v1::DraftWorkerMessage outgoing_;  // while writing_
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  absl::Status fault_;
  bool writing_ = false, reading_ = false, reading_ended_ = false;
  bool cancelled_ = false, done_ = false;
};

absl::StatusOr<std::unique_ptr<DraftStream>> DraftStream::dial(const worker::DialOptions& options,
                                                               const DraftHello& hello,
                                                               Callbacks callbacks) {
  ASSIGN_OR_RETURN(const auto channel, worker::open_channel(options));
  ASSIGN_OR_RETURN(const std::string bearer, worker::bearer_of(options));
  auto call = std::make_unique<Call>(channel, bearer, std::move(callbacks));
  call->start(hello);
  return std::unique_ptr<DraftStream>(new DraftStream(std::move(call)));
}

DraftStream::DraftStream(std::unique_ptr<Call> call) : call_(std::move(call)) {}
DraftStream::~DraftStream() { call_->cancel_and_wait(); }
void DraftStream::next() { call_->next(); }
bool DraftStream::writable() const { return call_->writable(); }
void DraftStream::send(const DraftWorkerSays& message) { call_->send(message); }

}  // namespace brigade::runtime::draft_worker
