// One draft stream to the coordinator, from dialling to its end: the only gRPC of the draft worker.
// Callbacks come on gRPC's threads and must not wait; everything else from the draft thread.
//
// Flow: one message is delivered at a time, next() asks for another; one is written at a time.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/joining/dial.h"
#include "runtime/speculative/draft_messages.h"

namespace brigade::runtime::draft_worker {

class DraftStream {
 public:
  struct Callbacks {
    std::function<void(DraftCoordinatorSays message)> on_message;
    std::function<void()> on_written;  // writable() again
    // Once, the last one.
    std::function<void(const absl::Status& why)> on_ended;
  };
  // Starts to dial, and to write the hello.
  static absl::StatusOr<std::unique_ptr<DraftStream>> dial(const DialOptions& options,
                                                           const DraftHello& hello,
                                                           Callbacks callbacks);
  // Ends the stream and waits for on_ended().
  ~DraftStream();

  void next();
  // No write is under way.
  bool writable() const;
  // Only when writable(); dropped when the stream has ended.
  void send(const DraftWorkerSays& message);

 private:
  struct Parts;
  explicit DraftStream(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace brigade::runtime::draft_worker
