// The coordinator's end of one worker's control stream, whatever carries it: gRPC, or calls in one
// process for tests. Called by the control thread; nothing here waits. What comes in goes to
// ClusterHost::said(), one message at a time: the next is read when handled() was called.
#pragma once

#include "absl/status/status.h"
#include "runtime/cluster/control_messages.h"

namespace brigade::runtime {

class ControlSession {
 public:
  virtual ~ControlSession() = default;
  // Queues a message. A session whose worker takes nothing ends itself when its queue is full.
  virtual void send(CoordinatorSays message) = 0;
  // What was handed in last has been dealt with.
  virtual void handled() = 0;
  // Ends the stream, after what was sent before. ClusterHost::ended() is called in any case, once.
  virtual void end(const absl::Status& status) = 0;
};

}  // namespace brigade::runtime
