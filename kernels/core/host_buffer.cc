#include "kernels/core/host_buffer.h"

#include <cstring>

#include "kernels/core/status.h"

namespace brigade::kernels {

absl::StatusOr<HostBuffer> HostBuffer::allocate(Device& device, size_t bytes) {
  ASSIGN_OR_RETURN(void* const data, device.allocate_pinned(bytes));
  std::memset(data, 0, bytes);
  HostBuffer buffer;
  buffer.data_ = {data, Free{&device, bytes}};
  return buffer;
}

}  // namespace brigade::kernels
