// Streams: each is a thread that does its work in order, with a seeded delay now and then, so that
// a missing wait between streams shows. The stand-ins for libraries (cuBLAS, NCCL) queue here too.
// Any thread.
#pragma once

#include <driver_types.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace brigade::cuda_emulation {

// One piece of a stream's work. After a fault of the device only `always` pieces still run.
struct StreamWork {
  std::function<void()> run;
  std::function<void()> on_submit = nullptr;  // by the caller, also at each launch of a graph
  bool always = false;
};

// Queues on the stream, or adds to the graph it is capturing. cudaErrorInvalidResourceHandle when
// the stream does not exist. Blocks while 1024 pieces are queued.
cudaError_t submit(cudaStream_t stream, StreamWork work);

// For libraries, which keep a stream beyond a call: whether it (still) exists, and its device or
// -1.
bool stream_exists(cudaStream_t stream);
int stream_device(cudaStream_t stream);
bool is_capturing(cudaStream_t stream);

// --- below: the runtime stand-in's own ---

struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  int device = 0;
  bool timed = true;
  bool captured = false;  // last recorded into a capture
  uint64_t recorded = 0;  // guarded by mutex, as below
  uint64_t passed = 0;
  int64_t passed_at_ns = 0;
};

// A stream's queue; lives until its thread has done what was queued.
class StreamQueue {
 public:
  StreamQueue(int device, bool blocking, uint64_t number);
  void start(std::shared_ptr<StreamQueue> self);
  void push(StreamWork work);
  void close();
  bool idle();
  void wait_idle();
  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  // A point after all that is queued so far, and a wait for such a point of another stream.
  std::pair<std::shared_ptr<EventState>, uint64_t> mark();
  void wait_for(std::shared_ptr<EventState> event, uint64_t generation);

  // The capture in progress; used by the capturing calls only, under the registry's lock.
  struct Capture {
    std::vector<StreamWork> nodes;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    bool invalid = false;
    unsigned long long owner = 0;  // thread that began it
  };
  std::unique_ptr<Capture> capture;

 private:
  static constexpr size_t kMaxQueued = 1024;
  void run();
  void delay();

  const int device_;
  const bool blocking_;
  uint64_t random_;
  std::mutex mutex_;
  std::condition_variable queued_;        // for the queue's own thread
  std::condition_variable done_;          // a piece of work has been done
  std::deque<StreamWork> queue_;          // guarded by mutex_, as below
  uint64_t pushed_ = 0, done_count_ = 0;  // pieces of work, ever
  bool closed_ = false;
  bool gone_ = false;  // the thread has ended
  std::shared_ptr<EventState> marks_ = std::make_shared<EventState>();
};

// The queue of a handle (null: the default stream of the current device); null if there is none.
std::shared_ptr<StreamQueue> find_stream(cudaStream_t stream);
// All streams of a device, the default one included.
std::vector<std::shared_ptr<StreamQueue>> streams_of(int device);

// A call that may not happen while this thread captures (or any, in global mode) ends the capture
// and returns cudaErrorStreamCaptureUnsupported.
cudaError_t forbid_during_capture();

void pass_event(EventState& event, uint64_t generation);
void wait_event(EventState& event, uint64_t generation);

}  // namespace brigade::cuda_emulation
