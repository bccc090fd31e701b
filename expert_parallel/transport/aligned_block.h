// Host memory for messages: `count` buffers of `bytes` each, all 64-byte aligned, in one
// allocation. Move-only; owned by a link or a frame pool.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace brigade::expert_parallel {

class AlignedBlock {
 public:
  AlignedBlock() = default;
  AlignedBlock(int count, size_t bytes) : stride_((bytes + 63) / 64 * 64), count_(count) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, stride_ * count)));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  std::byte* at(int i) const { return data_.get() + stride_ * i; }
  int count() const { return count_; }
  size_t bytes_each() const { return stride_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  size_t stride_ = 0;
  int count_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace brigade::expert_parallel
