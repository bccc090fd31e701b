#include "runtime/worker/control_stream.h"

#include <utility>

#include "brigade/v1/cluster.grpc.pb.h"
#include "kernels/core/status.h"
#include "runtime/joining/peer_call.h"
#include "runtime/worker/control_wire.h"

namespace brigade::runtime::worker {
namespace {

using Call = PeerCall<v1::WorkerMessage, v1::CoordinatorMessage>;

v1::WorkerMessage wire_of(const WorkerMessage& message) {
  v1::WorkerMessage wire;
  to_wire(message, &wire);
  return wire;
}

}  // namespace

struct ControlStream::Parts {
  std::unique_ptr<v1::WorkerControl::Stub> stub;
  Call call;
};

absl::StatusOr<std::unique_ptr<ControlStream>> ControlStream::dial(const DialOptions& options,
                                                                   const Registration& registration,
                                                                   Callbacks callbacks) {
  ASSIGN_OR_RETURN(const auto channel, open_channel(options));
  ASSIGN_OR_RETURN(const std::string bearer, bearer_of(options));
  Call::Reactions reactions = {
      .on_message = [on_message = std::move(callbacks.on_message)](
                        const v1::CoordinatorMessage& wire) -> absl::Status {
        ASSIGN_OR_RETURN(CoordinatorMessage message, from_wire(wire));
        on_message(std::move(message));
        return absl::OkStatus();
      },
      .on_written = nullptr,
      .on_ended = std::move(callbacks.on_ended)};
  std::unique_ptr<Parts> parts(new Parts{v1::WorkerControl::NewStub(channel),
                                         Call(kMaxQueued, bearer, std::move(reactions))});
  parts->stub->async()->Join(&parts->call.context(), &parts->call);
  parts->call.start(wire_of(registration));
  return std::unique_ptr<ControlStream>(new ControlStream(std::move(parts)));
}

ControlStream::ControlStream(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ControlStream::~ControlStream() { parts_->call.cancel_and_wait(); }
void ControlStream::next() { parts_->call.next(); }
absl::Status ControlStream::send(const WorkerMessage& message) {
  return parts_->call.send(wire_of(message));
}

}  // namespace brigade::runtime::worker
