// Holds a CUDA stream until opened, so that a test decides what has run. One that is still closed when
// it goes is opened. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "gtest/gtest.h"
#include "kernels/core/device_cuda.h"

namespace brigade::cuda_emulation {

class StreamGate {
 public:
  ~StreamGate() { open(); }
  void open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // From here on `stream`, of a CUDA device, does no work.
  void close(kernels::Stream& stream) {
    auto* const native =
        static_cast<cudaStream_t>(static_cast<kernels::CudaStream&>(stream).native());
    ASSERT_EQ(cudaLaunchHostFunc(native, &StreamGate::wait, this), cudaSuccess);
  }

 private:
  static void wait(void* gate) {
    auto& self = *static_cast<StreamGate*>(gate);
    std::unique_lock<std::mutex> lock(self.mutex_);
    self.changed_.wait_for(lock, std::chrono::seconds(60), [&self] { return self.open_; });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

}  // namespace brigade::cuda_emulation
