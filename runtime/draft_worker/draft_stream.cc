#include "runtime/draft_worker/draft_stream.h"

#include <utility>

#include "brigade/v1/draft.grpc.pb.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/joining/peer_call.h"
#include "runtime/speculative/draft_wire.h"

namespace brigade::runtime::draft_worker {
namespace {

using Call = PeerCall<v1::DraftWorkerMessage, v1::DraftCoordinatorMessage>;

v1::DraftWorkerMessage wire_of(const DraftWorkerSays& message) {
  v1::DraftWorkerMessage wire;
  to_wire(message, &wire);
  return wire;
}

}  // namespace

struct DraftStream::Parts {
  std::unique_ptr<v1::DraftControl::Stub> stub;
  Call call;
};

absl::StatusOr<std::unique_ptr<DraftStream>> DraftStream::dial(const DialOptions& options,
                                                               const DraftHello& hello,
                                                               Callbacks callbacks) {
  ASSIGN_OR_RETURN(const auto channel, open_channel(options));
  ASSIGN_OR_RETURN(const std::string bearer, bearer_of(options));
  Call::Reactions reactions = {
      .on_message = [on_message = std::move(callbacks.on_message)](
                        const v1::DraftCoordinatorMessage& wire) -> absl::Status {
        ASSIGN_OR_RETURN(DraftCoordinatorSays message, from_wire(wire));
        on_message(std::move(message));
        return absl::OkStatus();
      },
      .on_written = std::move(callbacks.on_written),
      .on_ended = std::move(callbacks.on_ended)};
  std::unique_ptr<Parts> parts(new Parts{v1::DraftControl::NewStub(channel),
                                         Call(/*max_queued=*/1, bearer, std::move(reactions))});
  parts->stub->async()->Draft(&parts->call.context(), &parts->call);
  parts->call.start(wire_of(hello));
  return std::unique_ptr<DraftStream>(new DraftStream(std::move(parts)));
}

DraftStream::DraftStream(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
DraftStream::~DraftStream() { parts_->call.cancel_and_wait(); }
void DraftStream::next() { parts_->call.next(); }
bool DraftStream::writable() const { return parts_->call.all_written(); }
void DraftStream::send(const DraftWorkerSays& message) {
  CHECK(!absl::IsResourceExhausted(parts_->call.send(wire_of(message))));
}

}  // namespace brigade::runtime::draft_worker
