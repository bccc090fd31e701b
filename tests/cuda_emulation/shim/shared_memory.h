// Shared memory of the block that runs on an OS thread. Every block finds it filled with a pattern;
// bytes past a variable fault under asan and at the guard page, and a changed gap is reported.
// Private to the shim.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace brigade::cuda_emulation {

class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void begin_block(size_t dynamic_bytes, unsigned char fill);
  void* dynamic() const { return dynamic_; }
  // Null when `static_bytes` would pass kSharedBytesDefault.
  void* static_variable(size_t bytes, size_t alignment, const void* key);
  size_t static_bytes() const { return static_bytes_; }
  // Empty, or what was written outside the block's variables.
  std::string damage() const;
  bool contains(const void* address) const;

 private:
  struct Variable {
    const void* key;
    char* data;
    size_t bytes;
  };
  char* mapped_;  // static variables from here, then a gap, dynamic memory up to the guard page
  char* guard_;
  char* dynamic_ = nullptr;
  size_t dynamic_bytes_ = 0;
  unsigned char fill_ = 0xFF;
  std::vector<Variable> variables_;
  size_t static_bytes_ = 0;
  char* next_static_ = nullptr;
};

}  // namespace brigade::cuda_emulation
