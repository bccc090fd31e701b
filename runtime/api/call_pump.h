// The thread between the step thread and gRPC: the step thread only says "this call has something
// new", and the pump serializes and starts writes, so that no step pays for them. Its queue holds a
// call at most once, so it is bounded by the number of open calls.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/api/call.h"

namespace brigade::runtime {

class CallPump {
 public:
  CallPump() = default;
  ~CallPump() { stop(); }
  CallPump(const CallPump&) = delete;
  CallPump& operator=(const CallPump&) = delete;

  void start();
  // Calls still queued are let go unpumped. May be called twice.
  void stop();

  // Any thread; never blocks for long.
  void wake(std::shared_ptr<Call> call);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Call>> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace brigade::runtime
