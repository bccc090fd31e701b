// The test device, as the dispatch of ops sees it. An address handed out by allocate() lies in a
// reservation without access rights; the bytes live `shadow_offset` further on, where only this
// device's ops and copies go. Every allocation has pages of its own with a gap behind it: use after
// free and overruns fault. Users include kernels/core/device.h.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/core/device.h"

namespace brigade::kernels {

class CpuAsyncStream : public Stream {
 public:
  using Work = std::function<absl::Status(ThreadPool&)>;

  // Appends work for the stream's thread. At most kMaxQueued pieces wait; a full queue makes the
  // caller wait up to a minute, then DEADLINE_EXCEEDED. The first error of any work is sticky: this
  // and every later call returns it.
  virtual absl::Status enqueue(Work work) = 0;

  // Where the bytes of a device address are, for use inside work. INVALID_ARGUMENT naming `what` when
  // [address, address + bytes) is not inside one live allocation of this device.
  virtual absl::StatusOr<void*> shadow(const void* address, size_t bytes, const char* what) = 0;

  static constexpr size_t kMaxQueued = 4096;
};

absl::StatusOr<std::unique_ptr<Device>> create_cpu_async_device(int threads);

}  // namespace brigade::kernels
