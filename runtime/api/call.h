// One open call of a client, as the threads that serve all calls see it. Calls are shared: gRPC's
// callbacks, the pump and the registry each hold one until they are done with it.
#pragma once

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace brigade::runtime {

class Call : public std::enable_shared_from_this<Call> {
 public:
  virtual ~Call() = default;

  // Moves what the engine has committed towards the client, as far as it goes without waiting.
  virtual void pump() = 0;

  // Ends the call with `status` after the write in flight, which a client that does not read can
  // hold back for ever.
  virtual void abort(const absl::Status& status) = 0;

  // The same at once: the write in flight is lost, and with it the client's sight of `status`.
  virtual void cut(const absl::Status& status) = 0;

  // When the write in flight was begun; InfiniteFuture when there is none.
  virtual absl::Time writing_since() const = 0;

 private:
  friend class CallPump;
  std::atomic<bool> queued_{false};
};

}  // namespace brigade::runtime
