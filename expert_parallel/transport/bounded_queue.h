// First in, first out, with room for a fixed number; allocates at construction only. One thread, or
// under the owner's mutex.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/core/check.h"

namespace brigade::expert_parallel {

template <typename T>
class BoundedQueue {
 public:
  BoundedQueue() = default;
  explicit BoundedQueue(size_t capacity) : slots_(capacity) {}

  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == slots_.size(); }
  size_t size() const { return size_; }
  T& front() {
    CHECK(!empty());
    return slots_[first_];
  }
  // The i-th from the front.
  T& operator[](size_t i) { return slots_[(first_ + i) % slots_.size()]; }
  const T& operator[](size_t i) const { return slots_[(first_ + i) % slots_.size()]; }
  void push(T value) {
    CHECK(!full());
    slots_[(first_ + size_++) % slots_.size()] = std::move(value);
  }
  T pop() {
    CHECK(!empty());
    T value = std::move(slots_[first_]);
    first_ = (first_ + 1) % slots_.size();
    --size_;
    return value;
  }
  void clear() { first_ = size_ = 0; }

 private:
  std::vector<T> slots_;
  size_t first_ = 0, size_ = 0;
};

}  // namespace brigade::expert_parallel
