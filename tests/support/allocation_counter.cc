#include "tests/support/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BRIGADE_COUNTS_ALLOCATIONS 0
#else
#define BRIGADE_COUNTS_ALLOCATIONS 1
#endif

namespace brigade::tests {
namespace {

std::atomic<uint64_t> count{0}, bytes{0}, largest{0};

}  // namespace

bool counts_allocations() { return BRIGADE_COUNTS_ALLOCATIONS != 0; }

Allocations allocations() { return {count.load(), bytes.load(), largest.load()}; }

void reset_largest_allocation() { largest.store(0); }

// Called by the replaced operators below.
void note_allocation(size_t size) {
  count.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(size, std::memory_order_relaxed);
  uint64_t seen = largest.load(std::memory_order_relaxed);
  while (size > seen && !largest.compare_exchange_weak(seen, size, std::memory_order_relaxed)) {
  }
}

}  // namespace brigade::tests

#if BRIGADE_COUNTS_ALLOCATIONS

namespace {

void* counted(size_t size, size_t alignment) {
  brigade::tests::note_allocation(size);
  const size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* data = alignment <= alignof(std::max_align_t) ? std::malloc(size == 0 ? 1 : size)
                                                      : std::aligned_alloc(alignment, rounded);
  if (data == nullptr) std::abort();
  return data;
}

}  // namespace

void* operator new(size_t size) { return counted(size, alignof(std::max_align_t)); }
void* operator new[](size_t size) { return counted(size, alignof(std::max_align_t)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t, std::align_val_t) noexcept { std::free(data); }

#endif
