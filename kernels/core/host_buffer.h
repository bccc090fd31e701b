// Host memory that a device copies from and to without holding up the caller: pinned on cuda, plain
// and aligned elsewhere. Planned at start, like Buffer; the owner makes sure that no stream still
// uses it.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"

namespace brigade::kernels {

// Move-only. Empty when default-made.
class HostBuffer {
 public:
  HostBuffer() = default;
  // 64-byte aligned, all bytes 0. RESOURCE_EXHAUSTED with the sizes when it does not fit.
  static absl::StatusOr<HostBuffer> allocate(Device& device, size_t bytes);

  void* data() const { return data_.get(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data());
  }
  size_t bytes() const { return data_ == nullptr ? 0 : data_.get_deleter().bytes; }

 private:
  struct Free {
    Device* device;
    size_t bytes;
    void operator()(void* data) const { device->free_pinned(data, bytes); }
  };
  std::unique_ptr<void, Free> data_;
};

}  // namespace brigade::kernels
