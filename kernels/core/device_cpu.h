// The plain CPU device, as the dispatch of ops sees it: a stream is a thread pool and everything runs
// on the calling thread. Users include kernels/core/device.h.
#pragma once

#include <memory>

#include "kernels/core/device.h"

namespace brigade::kernels {

class CpuStream : public Stream {
 public:
  virtual ThreadPool& threads() = 0;
};

std::unique_ptr<Device> create_cpu_device(int threads);

}  // namespace brigade::kernels
