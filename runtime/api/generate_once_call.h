// One call that collects its whole answer, bounded by the request's max_tokens and sequences, and
// sends it at the end. Owns itself until gRPC is done with it.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>

#include "runtime/api/answer.h"
#include "runtime/api/call.h"

namespace brigade::runtime {

class GenerateOnceCall final : public grpc::ServerUnaryReactor, public Call {
 public:
  // The reactor to hand to gRPC, which keeps `response` until it is done.
  static grpc::ServerUnaryReactor* start(const CallServices& services,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& request,
                                         grpc::ByteBuffer* response);

  GenerateOnceCall(const CallServices& services, grpc::ByteBuffer* response);

  void pump() override;
  void abort(const absl::Status& status) override;
  void cut(const absl::Status& status) override { abort(status); }
  absl::Time writing_since() const override { return absl::InfiniteFuture(); }

  void OnCancel() override;
  void OnDone() override;

 private:
  // Both with mutex_ held; true when the call must be finished once it is released.
  bool advance();
  bool finish_with(const absl::Status& status);
  void take(v1::GenerateResponse message);

  const CallServices& services_;
  grpc::ByteBuffer* const response_;
  const absl::Time arrived_;

  mutable std::mutex mutex_;
  std::shared_ptr<Call> self_;  // until OnDone
  Answer answer_;
  v1::GenerateOnceResponse collected_;
  bool finishing_ = false;
  absl::Status final_status_;
};

}  // namespace brigade::runtime
