#include "runtime/api/answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"
#include "runtime/api/request_from_proto.h"
#include "runtime/api/response_to_proto.h"
#include "runtime/api/rpc_message.h"

namespace brigade::runtime {

Answer::Answer(const CallServices& services, absl::Time arrived)
    : services_(services), arrived_(arrived) {}

absl::Status Answer::begin(const grpc::ByteBuffer& request, absl::Time deadline,
                           const std::shared_ptr<Call>& call) {
  ASSIGN_OR_RETURN(const ServingState::Serving serving, services_.state->admit());
  model_ = serving.model;
  v1::GenerateRequest message;
  RETURN_IF_ERROR(parse_message(request, &message));
  ASSIGN_OR_RETURN(GenerateRequest checked, request_from_proto(message, *model_, deadline));
  started_.set_request_id(checked.id);
  started_.set_prompt_tokens(static_cast<int64_t>(checked.prompt.size()));
  *started_.mutable_settings() = effective_settings(checked);
  last_token_.assign(checked.num_sequences, absl::InfinitePast());
  ASSIGN_OR_RETURN(stream_, serving.generator->submit(std::move(checked)));
  stream_->set_on_readable([pump = services_.pump, weak = std::weak_ptr<Call>(call)] {
    if (std::shared_ptr<Call> alive = weak.lock()) pump->wake(std::move(alive));
  });
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::GenerateResponse>> Answer::next(bool* ended) {
  TokenEvent event;
  if (!stream_->try_next(&event, ended)) return std::nullopt;
  if (event.finish == FinishReason::kError || event.finish == FinishReason::kCancelled) {
    if (!event.error.ok()) return event.error;
    return event.finish == FinishReason::kError ? absl::InternalError("generation failed")
                                                : absl::CancelledError("the request was cancelled");
  }
  v1::GenerateResponse message;
  if (event.token) {
    observe_token(event.sample_index);
    *message.mutable_token() = token_to_proto(event, *model_);
  }
  if (event.finish != FinishReason::kNone) {
    *message.mutable_finished() = finished_to_proto(event, started_.settings());
  }
  return message;
}

void Answer::cancel() {
  if (stream_ != nullptr) stream_->cancel();
}

void Answer::observe_token(int sample_index) {
  const absl::Time now = absl::Now();
  absl::Time& last = last_token_.at(sample_index);
  if (last == absl::InfinitePast()) {
    services_.observer->first_token(now - arrived_);
  } else {
    services_.observer->token_gap(now - last);
  }
  last = now;
}

}  // namespace brigade::runtime
