#include "kernels/core/host_buffer.h"

#include <cstring>
#include <utility>

#include "kernels/core/status.h"

namespace brigade::kernels {

absl::StatusOr<HostBuffer> HostBuffer::allocate(Device& device, size_t bytes) {
  HostBuffer buffer;
  ASSIGN_OR_RETURN(buffer.data_, device.allocate_pinned(bytes));
  buffer.device_ = &device;
  buffer.bytes_ = bytes;
  std::memset(buffer.data_, 0, bytes);
  return buffer;
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  if (this != &other) {
    if (device_ != nullptr) device_->free_pinned(data_, bytes_);
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

HostBuffer::~HostBuffer() {
  if (device_ != nullptr) device_->free_pinned(data_, bytes_);
}

}  // namespace brigade::kernels
