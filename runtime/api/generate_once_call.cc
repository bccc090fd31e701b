#include "runtime/api/generate_once_call.h"

#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "runtime/api/rpc_message.h"

namespace brigade::runtime {

grpc::ServerUnaryReactor* GenerateOnceCall::start(const CallServices& services,
                                                  grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer& request,
                                                  grpc::ByteBuffer* response) {
  auto call = std::make_shared<GenerateOnceCall>(services, response);
  bool finish = false;
  {
    std::lock_guard lock(call->mutex_);
    call->self_ = call;
    absl::Status status = services.open_calls->add(call);
    if (status.ok()) {
      status = call->answer_.begin(request, absl::FromChrono(context->deadline()), call);
    }
    if (status.ok()) {
      const v1::Started& started = call->answer_.started();
      call->collected_.set_request_id(started.request_id());
      *call->collected_.mutable_settings() = started.settings();
      for (int i = 0; i < started.settings().num_sequences(); ++i) call->collected_.add_sequences();
      finish = call->advance();
    } else {
      finish = call->finish_with(status);
    }
  }
  GenerateOnceCall* reactor = call.get();
  if (finish) reactor->Finish(to_grpc_status(call->final_status_));
  return reactor;
}

GenerateOnceCall::GenerateOnceCall(const CallServices& services, grpc::ByteBuffer* response)
    : services_(services),
      response_(response),
      arrived_(absl::Now()),
      answer_(services, arrived_) {}

void GenerateOnceCall::pump() {
  bool finish = false;
  {
    std::lock_guard lock(mutex_);
    finish = advance();
  }
  if (finish) Finish(to_grpc_status(final_status_));
}

bool GenerateOnceCall::advance() {
  while (!finishing_) {
    bool ended = false;
    absl::StatusOr<std::optional<v1::GenerateResponse>> next = answer_.next(&ended);
    if (!next.ok()) return finish_with(next.status());
    if (ended) {
      *response_ = serialize_message(collected_);
      return finish_with(absl::OkStatus());
    }
    if (!next->has_value()) return false;
    take(**std::move(next));
  }
  return false;
}

void GenerateOnceCall::take(v1::GenerateResponse message) {
  if (message.has_token()) {
    v1::Token& token = *message.mutable_token();
    v1::Sequence& sequence = *collected_.mutable_sequences(static_cast<int>(token.sample_index()));
    sequence.mutable_text()->append(token.text());
    sequence.add_token_ids(token.id());
    if (token.has_logprob()) sequence.add_logprobs()->Swap(token.mutable_logprob());
  }
  if (message.has_finished()) {
    v1::Finished& finished = *message.mutable_finished();
    v1::Sequence& sequence =
        *collected_.mutable_sequences(static_cast<int>(finished.sample_index()));
    sequence.mutable_text()->append(finished.text());
    sequence.mutable_finished()->Swap(&finished);
  }
}

bool GenerateOnceCall::finish_with(const absl::Status& status) {
  finishing_ = true;
  final_status_ = status;
  answer_.cancel();  // nothing to cancel after a full answer
  return true;
}

void GenerateOnceCall::abort(const absl::Status& status) {
  bool finish = false;
  {
    std::lock_guard lock(mutex_);
    if (!finishing_) finish = finish_with(status);
  }
  if (finish) Finish(to_grpc_status(final_status_));
}

void GenerateOnceCall::OnCancel() { abort(absl::CancelledError("the client is gone")); }

void GenerateOnceCall::OnDone() {
  std::shared_ptr<Call> self;
  {
    std::lock_guard lock(mutex_);
    self = std::move(self_);
  }
  services_.observer->call_ended(final_status_, absl::Now() - arrived_);
  services_.open_calls->remove(self);
}

}  // namespace brigade::runtime
