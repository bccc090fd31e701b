#include "runtime/api/generate_call.h"

#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "runtime/api/rpc_message.h"

namespace brigade::runtime {

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateCall::start(
    const CallServices& services, grpc::CallbackServerContext* context,
    const grpc::ByteBuffer& request) {
  auto call = std::make_shared<GenerateCall>(services, context);
  Next next;
  {
    std::lock_guard lock(call->mutex_);
    call->self_ = call;
    absl::Status status = services.open_calls->add(call);
    if (status.ok()) {
      status = call->answer_.begin(request, absl::FromChrono(context->deadline()), call);
    }
    next = status.ok() ? call->advance() : call->finish_with(status);
  }
  GenerateCall* reactor = call.get();
  call->tell(next);
  return reactor;  // alive: gRPC calls OnDone only after it got this
}

GenerateCall::GenerateCall(const CallServices& services, grpc::CallbackServerContext* context)
    : services_(services), context_(context), arrived_(absl::Now()), answer_(services, arrived_) {}

void GenerateCall::pump() {
  Next next;
  {
    std::lock_guard lock(mutex_);
    next = advance();
  }
  tell(next);
}

GenerateCall::Next GenerateCall::advance() {
  if (finishing_ || write_began_ != absl::InfiniteFuture()) return {};
  if (!abort_status_.ok()) return finish_with(abort_status_);
  v1::GenerateResponse message;
  if (!sent_started_) {
    sent_started_ = true;
    *message.mutable_started() = answer_.started();
  } else {
    bool ended = false;
    absl::StatusOr<std::optional<v1::GenerateResponse>> next = answer_.next(&ended);
    if (!next.ok()) return finish_with(next.status());
    if (ended) return finish_with(absl::OkStatus());
    if (!next->has_value()) return {};
    message = **std::move(next);
  }
  outgoing_ = serialize_message(message);
  write_began_ = absl::Now();
  return {.write = true};
}

GenerateCall::Next GenerateCall::finish_with(const absl::Status& status) {
  finishing_ = true;
  final_status_ = status;
  answer_.cancel();  // nothing to cancel after a full answer
  return {.finish = true};
}

void GenerateCall::tell(Next next) {
  // Only the thread that set write_began_ or finishing_ comes here with it, so no lock is needed.
  if (next.write) StartWrite(&outgoing_);
  if (next.finish) Finish(to_grpc_status(final_status_));
}

void GenerateCall::abort(const absl::Status& status) {
  Next next;
  {
    std::lock_guard lock(mutex_);
    if (done_ || finishing_) return;
    if (abort_status_.ok()) abort_status_ = status;
    answer_.cancel();
    next = advance();
  }
  tell(next);
}

void GenerateCall::cut(const absl::Status& status) {
  abort(status);
  std::lock_guard lock(mutex_);
  if (!done_) context_->TryCancel();
}

absl::Time GenerateCall::writing_since() const {
  std::lock_guard lock(mutex_);
  return write_began_;
}

void GenerateCall::OnWriteDone(bool ok) {
  Next next;
  {
    std::lock_guard lock(mutex_);
    write_began_ = absl::InfiniteFuture();
    if (!ok && abort_status_.ok()) abort_status_ = absl::CancelledError("the client is gone");
    next = advance();
  }
  tell(next);
}

void GenerateCall::OnCancel() {
  Next next;
  {
    std::lock_guard lock(mutex_);
    if (abort_status_.ok()) abort_status_ = absl::CancelledError("the client is gone");
    answer_.cancel();
    next = advance();
  }
  tell(next);
}

void GenerateCall::OnDone() {
  std::shared_ptr<Call> self;
  {
    std::lock_guard lock(mutex_);
    done_ = true;
    self = std::move(self_);
  }
  services_.observer->call_ended(final_status_, absl::Now() - arrived_);
  services_.open_calls->remove(self);
}

}  // namespace brigade::runtime
