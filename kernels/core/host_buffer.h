// Host memory that a device copies from and to without holding up the caller: pinned on cuda, plain
// and aligned elsewhere. Planned at start, like Buffer; the owner makes sure that no stream still
// uses it.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"

namespace brigade::kernels {

// Move-only. Empty when default-made.
class HostBuffer {
 public:
  HostBuffer() = default;
  // 64-byte aligned, all bytes 0. RESOURCE_EXHAUSTED with the sizes when it does not fit.
  static absl::StatusOr<HostBuffer> allocate(Device& device, size_t bytes);
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer();

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace brigade::kernels
