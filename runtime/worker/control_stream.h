// One stream to the coordinator, from dialling to its end: the only gRPC of the worker. Callbacks
// come on gRPC's threads and must not wait; everything else from the owner's thread.
//
// Flow: one message is delivered at a time; next() asks for another. Messages to send wait in a
// queue of kMaxQueued.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/worker/control_messages.h"
#include "runtime/joining/dial.h"

namespace brigade::runtime::worker {

class ControlStream {
 public:
  static constexpr size_t kMaxQueued = 4096;

  struct Callbacks {
    std::function<void(CoordinatorMessage message)> on_message;
    // Once, the last one.
    std::function<void(const absl::Status& why)> on_ended;
  };
  // Starts to dial and queues the registration. Files are read anew, so that a token may change.
  static absl::StatusOr<std::unique_ptr<ControlStream>> dial(const DialOptions& options,
                                                             const Registration& registration,
                                                             Callbacks callbacks);
  // Ends the stream and waits for on_ended().
  ~ControlStream();

  void next();
  // RESOURCE_EXHAUSTED: the coordinator reads too slowly.
  absl::Status send(const WorkerMessage& message);

 private:
  struct Parts;
  explicit ControlStream(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace brigade::runtime::worker
