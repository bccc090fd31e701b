// The streams that exist, by handle. Private to the runtime stand-in. Any thread.
#pragma once

#include <driver_types.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/stream_queue.h"

// CUDA's headers only name it: a handle, nothing more.
struct CUstream_st {
  int unused = 0;
};

namespace brigade::cuda_emulation {

class StreamRegistry {
 public:
  static StreamRegistry& instance();

  cudaStream_t create(int device, bool blocking);
  cudaError_t destroy(cudaStream_t stream);
  std::shared_ptr<StreamQueue> find(cudaStream_t stream);
  std::vector<std::shared_ptr<StreamQueue>> of_device(int device);
  void order_with_default(StreamQueue& queue);
  cudaError_t forbid_during_capture();
  std::recursive_mutex& mutex() { return mutex_; }  // also guards StreamQueue::capture

 private:
  std::shared_ptr<StreamQueue> make_queue(int device, bool blocking);

  std::recursive_mutex mutex_;
  std::map<cudaStream_t, std::shared_ptr<StreamQueue>> streams_;  // guarded by mutex_
  std::shared_ptr<StreamQueue> default_streams_[kMaxDevices];     // guarded by mutex_
  std::vector<std::unique_ptr<CUstream_st>>
      retired_;               // so that no address comes back; guarded by mutex_
  uint64_t next_number_ = 0;  // guarded by mutex_
};

// A number for the calling thread, never used again.
unsigned long long this_thread();

}  // namespace brigade::cuda_emulation
