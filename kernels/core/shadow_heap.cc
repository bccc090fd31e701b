#include "kernels/core/shadow_heap.h"

#include <sys/mman.h>

#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"

namespace brigade::kernels {
namespace {

constexpr size_t kReserved = size_t(64) << 30;  // address space, not memory
constexpr size_t kPage = 4096;

size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
// What an allocation takes from the reservation: its pages and the gap.
size_t extent(size_t bytes) { return pages(bytes + (bytes == 0)) + kPage; }

char* reserve() {
  void* mapped = mmap(nullptr, kReserved, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShadowHeap>> ShadowHeap::create() {
  char* addresses = reserve();
  char* shadows = reserve();
  if (addresses == nullptr || shadows == nullptr) {
    if (addresses != nullptr) munmap(addresses, kReserved);
    if (shadows != nullptr) munmap(shadows, kReserved);
    return absl::ResourceExhaustedError(
        absl::StrCat("device cpu_async cannot reserve twice ", kReserved, " bytes of addresses"));
  }
  return std::unique_ptr<ShadowHeap>(new ShadowHeap(addresses, shadows));
}

ShadowHeap::~ShadowHeap() {
  munmap(addresses_, kReserved);
  munmap(shadows_, kReserved);
}

absl::StatusOr<void*> ShadowHeap::allocate(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t offset = 0;  // first gap between live allocations that is wide enough
  bool fits = bytes < kReserved;
  for (const auto& [start, live_bytes] : live_) {
    if (fits && offset + extent(bytes) <= start) break;
    offset = start + extent(live_bytes);
  }
  fits = fits && offset + extent(bytes) <= kReserved;
  char* shadow = shadows_ + offset;
  if (!fits || mprotect(shadow, extent(bytes) - kPage, PROT_READ | PROT_WRITE) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("device cpu_async cannot allocate ", bytes,
                                                     " bytes: ", bytes_in_use_, " are in use"));
  }
  std::memset(shadow, 0xFF, bytes);
  live_[offset] = bytes;
  bytes_in_use_ += bytes;
  return addresses_ + offset;
}

void ShadowHeap::free(void* address) {
  if (address == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = live_.find(static_cast<size_t>(static_cast<char*>(address) - addresses_));
  CHECK(found != live_.end());
  const size_t length = extent(found->second) - kPage;
  madvise(shadows_ + found->first, length, MADV_DONTNEED);
  CHECK(mprotect(shadows_ + found->first, length, PROT_NONE) == 0);
  bytes_in_use_ -= found->second;
  live_.erase(found);
}

size_t ShadowHeap::bytes_in_use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_in_use_;
}

void* ShadowHeap::shadow(const void* address, size_t bytes) const {
  const char* from = static_cast<const char*>(address);
  if (from < addresses_ || from >= addresses_ + kReserved) return nullptr;
  const size_t offset = static_cast<size_t>(from - addresses_);
  std::lock_guard<std::mutex> lock(mutex_);
  auto behind = live_.upper_bound(offset);
  if (behind == live_.begin()) return nullptr;
  const auto& [start, live_bytes] = *std::prev(behind);
  if (offset + bytes > start + live_bytes) return nullptr;
  return shadows_ + offset;
}

}  // namespace brigade::kernels
