// How fast this machine reads memory right now: the ceiling that kernel_bench divides by. Plain
// reads of several sequential streams with prefetch; the best of several forms counts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/thread_pool.h"

namespace brigade::bench {

// Rotates through a large block so that no sample finds its bytes in a cache.
class ColdMemory {
 public:
  ColdMemory(const uint8_t* data, size_t bytes) : data_(data), bytes_(bytes) {}
  // The next `bytes`, 4096-byte aligned as long as `data` is: the reads are aligned vector loads.
  const uint8_t* next(size_t bytes);
  size_t bytes() const { return bytes_; }

 private:
  const uint8_t* data_;
  size_t bytes_;
  size_t offset_ = 0;
};

// Seconds: of this thread's processor time, or of the wall clock. One-thread samples use processor
// time because other programs share the cores; several threads can only be timed by the wall.
double thread_seconds();
double wall_seconds();

class ReadBandwidth {
 public:
  // `pool` of the threads to read with. Tries all forms once and keeps the two best.
  ReadBandwidth(kernels::ThreadPool& pool, ColdMemory& memory);
  // GB/s (1e9) of the better form, now.
  double sample();
  int streams() const { return forms_[0].streams; }
  size_t ahead() const { return forms_[0].ahead; }

 private:
  struct Form {
    int streams = 1;
    size_t ahead = 0;
  };
  double measure(const Form& form);

  kernels::ThreadPool& pool_;
  ColdMemory& memory_;
  Form forms_[2];
};

}  // namespace brigade::bench
