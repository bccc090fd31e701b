// The part that streaming and collecting calls share: from the bytes of a request to the token
// stream of its answer, then event by event into messages. Used under the lock of its call.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "brigade/v1/generation.pb.h"
#include "runtime/api/call_pump.h"
#include "runtime/api/open_calls.h"
#include "runtime/api/request_observer.h"
#include "runtime/api/serving_state.h"
#include "runtime/stream/token_stream.h"

namespace brigade::runtime {

// What all calls work with; outlives them.
struct CallServices {
  ServingState* state = nullptr;
  CallPump* pump = nullptr;
  OpenCalls* open_calls = nullptr;
  RequestObserver* observer = nullptr;
};

class Answer {
 public:
  Answer(const CallServices& services, absl::Time arrived);

  // Parses, checks and submits. The engine's events wake `call` through the pump from here on.
  absl::Status begin(const grpc::ByteBuffer& request, absl::Time deadline,
                     const std::shared_ptr<Call>& call);

  const v1::Started& started() const { return started_; }

  // The next message, if one is there now. The status of a failed sequence ends the whole call.
  // At the end of all sequences sets *ended.
  absl::StatusOr<std::optional<v1::GenerateResponse>> next(bool* ended);

  // The client is gone or the call was aborted. May be called at any time, also twice.
  void cancel();

 private:
  void observe_token(int sample_index);

  const CallServices& services_;
  const absl::Time arrived_;
  std::shared_ptr<const ServedModel> model_;
  std::shared_ptr<TokenStream> stream_;
  v1::Started started_;
  std::vector<absl::Time> last_token_;  // per sequence
};

}  // namespace brigade::runtime
