// One client's stream. The request was read by gRPC; this validates, tokenizes and submits it on
// the gRPC thread, then writes the answer with one write in flight. A write ends when the client's
// flow control takes it, so a slow reader fills the bounded token stream and pauses its own request
// alone. Owns itself until gRPC is done with it.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>

#include "runtime/api/answer.h"
#include "runtime/api/call.h"

namespace brigade::runtime {

class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public Call {
 public:
  // The reactor to hand to gRPC.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* start(const CallServices& services,
                                                           grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer& request);

  GenerateCall(const CallServices& services, grpc::CallbackServerContext* context);

  void pump() override;
  void abort(const absl::Status& status) override;
  void cut(const absl::Status& status) override;
  absl::Time writing_since() const override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // All with mutex_ held; they say what gRPC must be told once it is released.
  struct Next {
    bool write = false, finish = false;
  };
  Next advance();
  Next finish_with(const absl::Status& status);
  void tell(Next next);

  const CallServices& services_;
  grpc::CallbackServerContext* const context_;
  const absl::Time arrived_;

  mutable std::mutex mutex_;
  std::shared_ptr<Call> self_;  // until OnDone
  Answer answer_;
  bool sent_started_ = false;
  absl::Time write_began_ = absl::InfiniteFuture();  // a write is in flight when finite
  grpc::ByteBuffer outgoing_;
  absl::Status abort_status_;
  bool finishing_ = false;  // Finish was or is about to be called; nothing may follow
  bool done_ = false;
  absl::Status final_status_;
};

}  // namespace brigade::runtime
