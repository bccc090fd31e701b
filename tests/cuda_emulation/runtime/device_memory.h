// Device and pinned memory. Device memory is host memory at reserved addresses, filled with 0xFF,
// with an inaccessible page behind each allocation; while no stream has work it is inaccessible
// altogether, so that host code that touches it stops there (as long as the process has at most 128
// allocations and 16 MiB: with a whole model the switching would cost too much). Any thread.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace brigade::cuda_emulation {

enum class MemoryKind { kPageable, kPinned, kDevice };

struct Allocation {
  char* data = nullptr;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kPageable;
  int device = -1;
  bool owned = true;  // false: registered host memory
};

class DeviceMemory {
 public:
  static DeviceMemory& instance();

  cudaError_t allocate(int device, size_t bytes, void** out);
  cudaError_t free(void* data);
  cudaError_t allocate_pinned(size_t bytes, void** out);
  cudaError_t free_pinned(void* data);
  cudaError_t register_pinned(void* data, size_t bytes);
  cudaError_t unregister_pinned(void* data);

  // The allocation that holds `address`, also one past its end; nullopt: pageable memory.
  std::optional<Allocation> find(const void* address) const;
  // True when [address, address + bytes) is inside one allocation of that kind.
  bool holds(MemoryKind kind, const void* address, size_t bytes) const;
  bool in_device_range(const void* address) const;
  size_t bytes_in_use(int device) const;

  // Empty, or what was written beside the allocation that holds `address`.
  std::string damage(const void* address) const;

  // While at least one is held, device memory is accessible (see DeviceAccess).
  void begin_access();
  void end_access();

 private:
  DeviceMemory();
  void protect(const Allocation& allocation, bool accessible) const;
  void protect_all(bool accessible) const;
  std::string damage_of(const Allocation& allocation) const;

  char* reserved_ = nullptr;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::map<const char*, Allocation> live_;  // by address
  size_t next_ = 0;                         // addresses are not used twice
  size_t in_use_[16] = {};
  int accesses_ = 0;
  size_t device_allocations_ = 0, device_bytes_ = 0;
  bool host_access_faults_ = true;  // false for ever once there was too much to protect
};

// Held by a thread other than a stream's that works on device memory (a transport, say).
class DeviceAccess {
 public:
  DeviceAccess() { DeviceMemory::instance().begin_access(); }
  ~DeviceAccess() { DeviceMemory::instance().end_access(); }
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace brigade::cuda_emulation
