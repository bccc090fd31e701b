#include "tests/cuda_emulation/runtime/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/shim/kernel_run.h"
#include "tests/cuda_emulation/shim/poison.h"

namespace brigade::cuda_emulation {
namespace {

constexpr size_t kReserved = size_t{1} << 38;  // addresses, not memory
constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 256;  // of cudaMalloc
// What is worth protecting from the host: the system looks at every page, twice for each burst of
// work.
constexpr size_t kMostProtectedAllocations = 128;
constexpr size_t kMostProtectedBytes = size_t{16} << 20;
constexpr unsigned char kFill = 0xFF;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
// An allocation ends at a page's end, as far as its alignment allows.
size_t pages_of(size_t bytes) { return rounded(rounded(bytes, kAlignment), kPage); }
char* first_page(const Allocation& allocation) {
  return allocation.data + rounded(allocation.bytes, kAlignment) - pages_of(allocation.bytes);
}
char* last_page_end(const Allocation& allocation) {
  return allocation.data + rounded(allocation.bytes, kAlignment);
}

// What lies around an allocation: another byte at each address, so that a copy shows as well.
unsigned char edge_byte(const char* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  return static_cast<unsigned char>(0x80 | (address * 37 + (address >> 12) * 101) >> 1);
}
void fill_edges(const Allocation& made) {
  for (char* at = first_page(made); at < made.data; ++at) *at = static_cast<char>(edge_byte(at));
  for (char* at = made.data + made.bytes; at < last_page_end(made); ++at) {
    *at = static_cast<char>(edge_byte(at));
  }
}
[[maybe_unused]] bool is_intact(const char* from, const char* to) {
  for (const char* at = from; at < to; ++at) {
    if (static_cast<unsigned char>(*at) != edge_byte(at)) return false;
  }
  return true;
}

DeviceMemory* for_faults = nullptr;

// "device memory 12 bytes past an allocation of 100 bytes". Runs in a signal handler.
bool describe_address(const void* address, char* text, size_t size) {
  if (for_faults == nullptr || !for_faults->in_device_range(address)) return false;
  const auto found = for_faults->find(address);
  if (!found) {
    std::snprintf(text, size, "%p, device memory that is not allocated or no longer", address);
  } else {
    std::snprintf(text, size, "%p, byte %td of a device allocation of %zu bytes", address,
                  static_cast<const char*>(address) - found->data, found->bytes);
  }
  return true;
}

}  // namespace

DeviceMemory& DeviceMemory::instance() {
  static auto* const memory = new DeviceMemory;  // outlives every thread
  return *memory;
}

DeviceMemory::DeviceMemory() {
  void* mapped =
      mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    std::fprintf(stderr, "cuda emulation: no addresses for device memory\n");
    std::abort();
  }
  reserved_ = static_cast<char*>(mapped);
  const char* host_access = std::getenv("BRIGADE_EMULATION_HOST_ACCESS");
  host_access_faults_ = host_access == nullptr || std::strcmp(host_access, "allow") != 0;
  for_faults = this;
  describe_faults_with(describe_address);
}

cudaError_t DeviceMemory::allocate(int device, size_t bytes, void** out) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t length = pages_of(bytes);
  if (bytes > device_memory_bytes() || in_use_[device] + bytes > device_memory_bytes() ||
      next_ + length + 2 * kPage > kReserved) {
    return cudaErrorMemoryAllocation;
  }
  char* const page = reserved_ + next_ + kPage;
  if (mprotect(page, length, PROT_READ | PROT_WRITE) != 0) return cudaErrorMemoryAllocation;
  const Allocation made{page + length - rounded(bytes, kAlignment), bytes, MemoryKind::kDevice,
                        device};
  std::memset(made.data, kFill, bytes);
  fill_edges(made);
  BRIGADE_POISON(page, static_cast<size_t>(made.data - page));
  BRIGADE_POISON(made.data + bytes, rounded(bytes, kAlignment) - bytes);
  next_ += length + kPage;
  in_use_[device] += bytes;
  live_[made.data] = made;
  ++device_allocations_;
  device_bytes_ += length;
  if (host_access_faults_ &&
      (device_allocations_ > kMostProtectedAllocations || device_bytes_ > kMostProtectedBytes)) {
    protect_all(true);
    host_access_faults_ = false;
  }
  if (accesses_ == 0) protect(made, false);
  *out = made.data;
  return cudaSuccess;
}

cudaError_t DeviceMemory::free(void* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = live_.find(static_cast<char*>(data));
  if (found == live_.end() || found->second.kind != MemoryKind::kDevice)
    return cudaErrorInvalidValue;
  const Allocation gone = found->second;
  protect(gone, true);
  if (const std::string what = damage_of(gone); !what.empty()) {
    std::fprintf(stderr, "cuda emulation: cudaFree: %s\n", what.c_str());
    std::abort();
  }
  BRIGADE_UNPOISON(first_page(gone), pages_of(gone.bytes));
  madvise(first_page(gone), pages_of(gone.bytes), MADV_DONTNEED);
  mprotect(first_page(gone), pages_of(gone.bytes), PROT_NONE);
  in_use_[gone.device] -= gone.bytes;
  --device_allocations_;
  device_bytes_ -= pages_of(gone.bytes);
  live_.erase(found);
  return cudaSuccess;
}

cudaError_t DeviceMemory::allocate_pinned(size_t bytes, void** out) {
  void* data = std::aligned_alloc(kAlignment, rounded(std::max<size_t>(bytes, 1), kAlignment));
  if (data == nullptr) return cudaErrorMemoryAllocation;
  std::memset(data, kFill, bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  live_[static_cast<char*>(data)] = {static_cast<char*>(data), bytes, MemoryKind::kPinned};
  *out = data;
  return cudaSuccess;
}

cudaError_t DeviceMemory::free_pinned(void* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = live_.find(static_cast<char*>(data));
  if (found == live_.end() || found->second.kind != MemoryKind::kPinned || !found->second.owned) {
    return cudaErrorInvalidValue;
  }
  live_.erase(found);
  std::free(data);
  return cudaSuccess;
}

cudaError_t DeviceMemory::register_pinned(void* data, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool fresh =
      live_
          .try_emplace(static_cast<char*>(data),
                       Allocation{static_cast<char*>(data), bytes, MemoryKind::kPinned, -1, false})
          .second;
  return fresh ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}

cudaError_t DeviceMemory::unregister_pinned(void* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = live_.find(static_cast<char*>(data));
  if (found == live_.end() || found->second.owned) return cudaErrorHostMemoryNotRegistered;
  live_.erase(found);
  return cudaSuccess;
}

std::optional<Allocation> DeviceMemory::find(const void* address) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const char* const at = static_cast<const char*>(address);
  const auto behind = live_.upper_bound(at);
  if (behind == live_.begin()) return std::nullopt;
  const Allocation& candidate = std::prev(behind)->second;
  if (at > candidate.data + candidate.bytes) return std::nullopt;
  return candidate;
}

bool DeviceMemory::holds(MemoryKind kind, const void* address, size_t bytes) const {
  const auto found = find(address);
  return found && found->kind == kind &&
         static_cast<const char*>(address) + bytes <= found->data + found->bytes;
}

bool DeviceMemory::in_device_range(const void* address) const {
  const char* const at = static_cast<const char*>(address);
  return at >= reserved_ && at < reserved_ + kReserved;
}

size_t DeviceMemory::bytes_in_use(int device) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_use_[device];
}

std::string DeviceMemory::damage(const void* address) const {
  const auto found = find(address);
  if (!found || found->kind != MemoryKind::kDevice) return "";
  std::string what = damage_of(*found);
  if (!what.empty()) fill_edges(*found);  // said once
  return what;
}

// Asan stops at the access itself; without it, what lies around an allocation must still be filled.
std::string DeviceMemory::damage_of([[maybe_unused]] const Allocation& allocation) const {
#if !defined(__SANITIZE_ADDRESS__)
  const std::string size = std::to_string(allocation.bytes);
  if (!is_intact(std::max(first_page(allocation), allocation.data - kAlignment), allocation.data)) {
    return "bytes before a device allocation of " + size + " bytes were written";
  }
  if (!is_intact(allocation.data + allocation.bytes, last_page_end(allocation))) {
    return "bytes past a device allocation of " + size + " bytes were written";
  }
#endif
  return "";
}

void DeviceMemory::protect(const Allocation& allocation, bool accessible) const {
  if (!host_access_faults_) return;
  mprotect(first_page(allocation), pages_of(allocation.bytes),
           accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void DeviceMemory::protect_all(bool accessible) const {
  for (const auto& [address, allocation] : live_) {
    if (allocation.kind == MemoryKind::kDevice) protect(allocation, accessible);
  }
}

void DeviceMemory::begin_access() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (accesses_++ == 0) protect_all(true);
}

void DeviceMemory::end_access() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--accesses_ == 0) protect_all(false);
}

}  // namespace brigade::cuda_emulation
