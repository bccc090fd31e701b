// Stand-ins for the runtime's calls that allocate, copy and fill.
#include <cuda_runtime_api.h>

#include <cstring>
#include <optional>
#include <vector>

#include "tests/cuda_emulation/runtime/device_memory.h"
#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/errors.h"
#include "tests/cuda_emulation/runtime/stream_queue.h"

using namespace brigade::cuda_emulation;

namespace {

DeviceMemory& memory() { return DeviceMemory::instance(); }

struct Rectangle {
  size_t width, height, to_pitch, from_pitch;
  size_t extent(size_t pitch) const { return height == 0 ? 0 : pitch * (height - 1) + width; }
};

void copy_rows(char* to, const char* from, const Rectangle& size, size_t from_pitch) {
  for (size_t row = 0; row < size.height; ++row) {
    std::memmove(to + row * size.to_pitch, from + row * from_pitch, size.width);
  }
}

MemoryKind kind_of(const void* address) {
  const auto found = memory().find(address);
  return found ? found->kind : MemoryKind::kPageable;
}

// The direction is what the addresses say, and within one allocation; else the error.
cudaError_t check_direction(const void* to, size_t to_extent, const void* from, size_t from_extent,
                            cudaMemcpyKind kind) {
  const bool to_device = memory().in_device_range(to);
  const bool from_device = memory().in_device_range(from);
  if (to_device && !memory().holds(MemoryKind::kDevice, to, to_extent))
    return cudaErrorInvalidValue;
  if (from_device && !memory().holds(MemoryKind::kDevice, from, from_extent))
    return cudaErrorInvalidValue;
  switch (kind) {
    case cudaMemcpyDefault:
      return cudaSuccess;
    case cudaMemcpyHostToHost:
      return to_device || from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyHostToDevice:
      return !to_device || from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyDeviceToHost:
      return to_device || !from_device ? cudaErrorInvalidValue : cudaSuccess;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device ? cudaSuccess : cudaErrorInvalidValue;
  }
  return cudaErrorInvalidMemcpyDirection;
}

// Pageable sources are staged before the call returns; into pageable memory the call waits, as the
// runtime's own does. A pinned target reads as 0xFF until the copy has been done.
cudaError_t enqueue_copy(void* to, const void* from, Rectangle size, cudaMemcpyKind kind,
                         cudaStream_t stream) {
  if (size.width == 0 || size.height == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t wrong =
          check_direction(to, size.extent(size.to_pitch), from, size.extent(size.from_pitch), kind);
      wrong != cudaSuccess) {
    return wrong;
  }
  const bool pageable_from = kind_of(from) == MemoryKind::kPageable;
  const bool pageable_to = kind_of(to) == MemoryKind::kPageable;
  if ((pageable_from || pageable_to) && is_capturing(stream)) {
    forbid_during_capture();
    return cudaErrorStreamCaptureUnsupported;
  }
  char* const target = static_cast<char*>(to);
  const char* const source = static_cast<const char*>(from);
  StreamWork work;
  if (pageable_from) {
    ++count().pageable_copies;
    auto staged = std::make_shared<std::vector<char>>(size.width * size.height);
    for (size_t row = 0; row < size.height; ++row) {
      std::memcpy(staged->data() + row * size.width, source + row * size.from_pitch, size.width);
    }
    work.run = [=] { copy_rows(target, staged->data(), size, size.width); };
  } else {
    const bool to_host = memory().in_device_range(from) && !memory().in_device_range(to);
    work.run = [=] {
      copy_rows(target, source, size, size.from_pitch);
      if (to_host) count().bytes_to_host += size.width * size.height;
    };
  }
  if (!memory().in_device_range(to)) {
    work.on_submit = [=] {
      for (size_t row = 0; row < size.height; ++row)
        std::memset(target + row * size.to_pitch, 0xFF, size.width);
    };
  }
  const cudaError_t submitted = submit(stream, std::move(work));
  if (submitted != cudaSuccess || !pageable_to) return submitted;
  ++count().blocking_copies;
  find_stream(stream)->wait_idle();
  return usable();
}

cudaError_t enqueue_fill(void* to, size_t pitch, int value, size_t width, size_t height,
                         cudaStream_t stream) {
  if (width == 0 || height == 0) return cudaSuccess;
  if (!memory().holds(MemoryKind::kDevice, to, pitch * (height - 1) + width) &&
      !memory().holds(MemoryKind::kPinned, to, pitch * (height - 1) + width)) {
    return cudaErrorInvalidValue;
  }
  return submit(stream, {.run = [=] {
                  for (size_t row = 0; row < height; ++row)
                    std::memset(static_cast<char*>(to) + row * pitch, value, width);
                }});
}

// For calls that may not be made during a capture.
#define BRIGADE_RETURN_IF_CAPTURING()                                                    \
  if (const cudaError_t forbidden = forbid_during_capture(); forbidden != cudaSuccess) { \
    return result(forbidden);                                                            \
  }

}  // namespace

cudaError_t cudaMalloc(void** out, size_t bytes) {
  BRIGADE_RETURN_UNLESS_USABLE();
  BRIGADE_RETURN_IF_CAPTURING();
  if (out == nullptr) return result(cudaErrorInvalidValue);
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  ++count().memory_calls;
  return result(memory().allocate(current_device(), bytes, out));
}

// Waits for the device first, as the real one does.
cudaError_t cudaFree(void* data) {
  BRIGADE_RETURN_UNLESS_USABLE();
  BRIGADE_RETURN_IF_CAPTURING();
  if (data == nullptr) return cudaSuccess;
  const auto found = memory().find(data);
  if (!found || found->kind != MemoryKind::kDevice || found->data != data)
    return result(cudaErrorInvalidValue);
  ++count().memory_calls;
  for (const auto& queue : streams_of(found->device)) queue->wait_idle();
  return result(memory().free(data));
}

cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned flags) {
  BRIGADE_RETURN_UNLESS_USABLE();
  BRIGADE_RETURN_IF_CAPTURING();
  constexpr unsigned kKnown =
      cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if (out == nullptr || (flags & ~kKnown) != 0) return result(cudaErrorInvalidValue);
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  ++count().memory_calls;
  return result(memory().allocate_pinned(bytes, out));
}

cudaError_t cudaMallocHost(void** out, size_t bytes) {
  return cudaHostAlloc(out, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* data) {
  BRIGADE_RETURN_UNLESS_USABLE();
  BRIGADE_RETURN_IF_CAPTURING();
  if (data == nullptr) return cudaSuccess;
  ++count().memory_calls;
  for (int device = 0; device < device_count(); ++device) {
    for (const auto& queue : streams_of(device)) queue->wait_idle();
  }
  return result(memory().free_pinned(data));
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (data == nullptr || bytes == 0) return result(cudaErrorInvalidValue);
  return result(memory().register_pinned(data, bytes));
}

cudaError_t cudaHostUnregister(void* data) {
  BRIGADE_RETURN_UNLESS_USABLE();
  return result(memory().unregister_pinned(data));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (attributes == nullptr) return result(cudaErrorInvalidValue);
  *attributes = {};
  const auto found = memory().find(data);
  attributes->device = found && found->kind == MemoryKind::kDevice ? found->device : -1;
  attributes->type = !found                               ? cudaMemoryTypeUnregistered
                     : found->kind == MemoryKind::kDevice ? cudaMemoryTypeDevice
                                                          : cudaMemoryTypeHost;
  if (found && found->kind == MemoryKind::kDevice)
    attributes->devicePointer = const_cast<void*>(data);
  if (found && found->kind == MemoryKind::kPinned) {
    attributes->devicePointer = attributes->hostPointer = const_cast<void*>(data);
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  BRIGADE_RETURN_UNLESS_USABLE();
  return result(enqueue_copy(to, from, {bytes, 1, bytes, bytes}, kind, stream));
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (width > to_pitch || width > from_pitch) return result(cudaErrorInvalidValue);
  return result(enqueue_copy(to, from, {width, height, to_pitch, from_pitch}, kind, stream));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  BRIGADE_RETURN_UNLESS_USABLE();
  BRIGADE_RETURN_IF_CAPTURING();
  const cudaError_t queued = enqueue_copy(to, from, {bytes, 1, bytes, bytes}, kind, nullptr);
  if (queued != cudaSuccess) return result(queued);
  find_stream(nullptr)->wait_idle();
  return result(usable());
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  BRIGADE_RETURN_UNLESS_USABLE();
  return result(enqueue_fill(to, bytes, value, bytes, 1, stream));
}

cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (width > pitch) return result(cudaErrorInvalidValue);
  return result(enqueue_fill(to, pitch, value, width, height, stream));
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}
