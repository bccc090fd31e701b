#include "runtime/cluster/join_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/cluster/control_wire.h"

namespace brigade::runtime {
namespace {

grpc::Status grpc_status(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace

// What the control thread holds of a call; it may outlive the call.
class JoinCall::Session final : public ControlSession {
 public:
  explicit Session(JoinCall* call) : call_(call) {}
  void send(CoordinatorSays message) override {
    std::lock_guard lock(mutex_);
    if (call_ != nullptr) call_->send(message);
  }
  void handled() override {
    std::lock_guard lock(mutex_);
    if (call_ != nullptr) call_->read_next();
  }
  void end(const absl::Status& status) override {
    std::lock_guard lock(mutex_);
    if (call_ != nullptr) call_->finish(grpc_status(status));
  }
  void detach() {
    std::lock_guard lock(mutex_);
    call_ = nullptr;
  }

 private:
  std::mutex mutex_;
  JoinCall* call_;
};

JoinCall* JoinCall::start(ClusterHost& host, grpc::CallbackServerContext* context) {
  auto* call = new JoinCall(host, context);
  const absl::StatusOr<uint64_t> id = host.opened(call->session_);
  if (id.ok()) {
    call->id_ = *id;
    call->read_next();
  } else {
    call->finish(grpc_status(id.status()));
  }
  return call;
}

JoinCall::JoinCall(ClusterHost& host, grpc::CallbackServerContext* context)
    : host_(host), context_(context), session_(std::make_shared<Session>(this)) {}

void JoinCall::read_next() {
  {
    std::lock_guard lock(mutex_);
    if (end_) return;
  }
  incoming_.Clear();
  StartRead(&incoming_);
}

void JoinCall::OnReadDone(bool ok) {
  // The worker has closed its half, or the stream broke.
  if (!ok) return finish(grpc::Status::OK);
  absl::StatusOr<WorkerSays> message = from_wire(incoming_);
  if (!message.ok()) return finish(grpc_status(message.status()));
  host_.said(id_, *std::move(message));
}

void JoinCall::send(const CoordinatorSays& message) {
  std::lock_guard lock(mutex_);
  if (end_) return;
  if (outgoing_.size() >= kMaxQueued) {
    end_ = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the worker reads nothing");
    context_->TryCancel();  // the write under way would never end
    return;
  }
  outgoing_.push_back(to_wire(message));
  if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
}

void JoinCall::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  outgoing_.pop_front();
  if (!ok) {
    outgoing_.clear();
    if (!end_) end_ = grpc::Status::CANCELLED;
  }
  if (!outgoing_.empty()) {
    StartWrite(&outgoing_.front());
  } else {
    finish_when_written();
  }
}

void JoinCall::OnCancel() { finish(grpc::Status::CANCELLED); }

void JoinCall::finish(const grpc::Status& status) {
  std::lock_guard lock(mutex_);
  if (!end_) end_ = status;
  finish_when_written();
}

void JoinCall::finish_when_written() {
  if (!end_ || !outgoing_.empty() || std::exchange(finished_, true)) return;
  Finish(*end_);
}

void JoinCall::OnDone() {
  session_->detach();
  if (id_ != 0) {
    host_.ended(id_, absl::UnavailableError(context_->IsCancelled() ? "the connection broke"
                                                                    : "the stream has ended"));
  }
  delete this;
}

}  // namespace brigade::runtime
