// Memory of the cpu_async device: addresses without access rights whose bytes lie a constant offset
// further on. Thread safe. Owns both reservations; everything allocated ends with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"

namespace brigade::kernels {

class ShadowHeap {
 public:
  static absl::StatusOr<std::unique_ptr<ShadowHeap>> create();
  ~ShadowHeap();
  ShadowHeap(const ShadowHeap&) = delete;
  ShadowHeap& operator=(const ShadowHeap&) = delete;

  // Page aligned, with an unused page behind; every byte of the shadow is 0xFF.
  absl::StatusOr<void*> allocate(size_t bytes);
  // The shadow of a freed allocation loses its access rights until it is handed out again.
  void free(void* address);
  size_t bytes_in_use() const;

  // Where the bytes of [address, address + bytes) are; null unless inside one live allocation.
  void* shadow(const void* address, size_t bytes) const;

 private:
  ShadowHeap(char* addresses, char* shadows) : addresses_(addresses), shadows_(shadows) {}

  char* const addresses_;  // PROT_NONE for ever
  char* const shadows_;    // readable and writable where allocated
  mutable std::mutex mutex_;
  std::map<size_t, size_t> live_;  // offset -> requested bytes
  size_t bytes_in_use_ = 0;
};

}  // namespace brigade::kernels
