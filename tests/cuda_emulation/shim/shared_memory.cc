#include "tests/cuda_emulation/shim/shared_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cuda_emulation/shim/kernel_run.h"
#include "tests/cuda_emulation/shim/poison.h"

namespace brigade::cuda_emulation {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGap = 64;  // behind each variable
constexpr unsigned char kGapByte = 0xD7;
constexpr size_t kMapped = size_t{512} << 10;
constexpr size_t kDynamicAlignment = 128;

[[maybe_unused]] bool is_intact(const char* from, const char* to) {
  return std::all_of(from, to,
                     [](char byte) { return static_cast<unsigned char>(byte) == kGapByte; });
}

}  // namespace

SharedMemory::SharedMemory() {
  void* mapped = mmap(nullptr, kMapped + kPage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED ||
      mprotect(static_cast<char*>(mapped) + kMapped, kPage, PROT_NONE) != 0) {
    std::fprintf(stderr, "cuda emulation: no memory for the shared memory of a block\n");
    std::abort();
  }
  mapped_ = static_cast<char*>(mapped);
  guard_ = mapped_ + kMapped;
}

SharedMemory::~SharedMemory() {
  BRIGADE_UNPOISON(mapped_, kMapped);
  munmap(mapped_, kMapped + kPage);
}

void SharedMemory::begin_block(size_t dynamic_bytes, unsigned char fill) {
  fill_ = fill;
  dynamic_bytes_ = dynamic_bytes;
  const size_t room =
      (dynamic_bytes + kDynamicAlignment - 1) / kDynamicAlignment * kDynamicAlignment;
  dynamic_ = guard_ - room;
  BRIGADE_UNPOISON(dynamic_ - kGap, room + kGap);
  std::memset(dynamic_, fill, dynamic_bytes);
  std::memset(dynamic_ - kGap, kGapByte, kGap);
  std::memset(dynamic_ + dynamic_bytes, kGapByte, room - dynamic_bytes);
  BRIGADE_POISON(dynamic_ - kGap, kGap);
  BRIGADE_POISON(dynamic_ + dynamic_bytes, room - dynamic_bytes);
  variables_.clear();
  static_bytes_ = 0;
  next_static_ = mapped_;
}

void* SharedMemory::static_variable(size_t bytes, size_t alignment, const void* key) {
  for (const Variable& variable : variables_) {
    if (variable.key == key) return variable.data;
  }
  alignment = std::max(alignment, size_t{16});
  static_bytes_ += (bytes + alignment - 1) / alignment * alignment;
  if (static_bytes_ > kSharedBytesDefault) return nullptr;
  const auto start =
      (reinterpret_cast<uintptr_t>(next_static_) + alignment - 1) / alignment * alignment;
  char* const data = reinterpret_cast<char*>(start);
  next_static_ = data + bytes + kGap;
  BRIGADE_UNPOISON(data, bytes + kGap);
  std::memset(data, fill_, bytes);
  std::memset(data + bytes, kGapByte, kGap);
  BRIGADE_POISON(data + bytes, kGap);
  variables_.push_back({key, data, bytes});
  return data;
}

std::string SharedMemory::damage() const {
#if !defined(__SANITIZE_ADDRESS__)  // asan stops at the access itself
  if (dynamic_ != nullptr && !is_intact(dynamic_ - kGap, dynamic_)) {
    return "bytes before its dynamic shared memory were written";
  }
  if (dynamic_ != nullptr && !is_intact(dynamic_ + dynamic_bytes_, guard_)) {
    return "bytes past its " + std::to_string(dynamic_bytes_) +
           " of dynamic shared memory were written";
  }
  for (const Variable& variable : variables_) {
    if (!is_intact(variable.data + variable.bytes, variable.data + variable.bytes + kGap)) {
      return "bytes past a shared variable of " + std::to_string(variable.bytes) + " were written";
    }
  }
#endif
  return "";
}

bool SharedMemory::contains(const void* address) const {
  const char* at = static_cast<const char*>(address);
  return at >= mapped_ && at < guard_ + kPage;
}

}  // namespace brigade::cuda_emulation
