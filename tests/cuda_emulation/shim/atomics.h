// CUDA's atomic functions. Blocks of one launch run in turn, but streams run side by side: the
// operations are real atomics. A compare-and-swap now and then lets the block's other threads go
// on, so that a loop that waits for one of them ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/cuda_emulation/shim/device_thread.h"

namespace brigade::cuda_emulation {

// Replaces *address by change(*address); returns the value before.
template <typename T, typename Change>
T atomic_update(T* address, Change change) {
  std::atomic_ref<T> value(*address);
  T before = value.load(std::memory_order_relaxed);
  while (!value.compare_exchange_weak(before, change(before), std::memory_order_relaxed)) {
  }
  return before;
}

template <typename T>
concept AtomicWord =
    std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>;

}  // namespace brigade::cuda_emulation

template <typename T>
requires(brigade::cuda_emulation::AtomicWord<T> || std::is_floating_point_v<T>) T
    atomicAdd(T* address, std::type_identity_t<T> value) {
  return brigade::cuda_emulation::atomic_update(address,
                                                [=](T old) { return static_cast<T>(old + value); });
}
template <typename T>
requires(std::is_same_v<T, int> || std::is_same_v<T, unsigned>) T
    atomicSub(T* address, std::type_identity_t<T> value) {
  return brigade::cuda_emulation::atomic_update(address,
                                                [=](T old) { return static_cast<T>(old - value); });
}
template <typename T>
requires(brigade::cuda_emulation::AtomicWord<T> || std::is_same_v<T, long long>) T
    atomicMax(T* address, std::type_identity_t<T> value) {
  return brigade::cuda_emulation::atomic_update(address,
                                                [=](T old) { return old > value ? old : value; });
}
template <typename T>
requires(brigade::cuda_emulation::AtomicWord<T> || std::is_same_v<T, long long>) T
    atomicMin(T* address, std::type_identity_t<T> value) {
  return brigade::cuda_emulation::atomic_update(address,
                                                [=](T old) { return old < value ? old : value; });
}
template <typename T>
requires(brigade::cuda_emulation::AtomicWord<T>) T
    atomicAnd(T* address, std::type_identity_t<T> value) {
  return brigade::cuda_emulation::atomic_update(address,
                                                [=](T old) { return static_cast<T>(old & value); });
}
template <typename T>
requires(brigade::cuda_emulation::AtomicWord<T>) T
    atomicOr(T* address, std::type_identity_t<T> value) {
  return brigade::cuda_emulation::atomic_update(address,
                                                [=](T old) { return static_cast<T>(old | value); });
}
template <typename T>
requires(brigade::cuda_emulation::AtomicWord<T>) T
    atomicXor(T* address, std::type_identity_t<T> value) {
  return brigade::cuda_emulation::atomic_update(address,
                                                [=](T old) { return static_cast<T>(old ^ value); });
}
template <typename T>
requires(brigade::cuda_emulation::AtomicWord<T> || std::is_same_v<T, float>) T
    atomicExch(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).exchange(value, std::memory_order_relaxed);
}
template <typename T>
requires(brigade::cuda_emulation::AtomicWord<T> || std::is_same_v<T, unsigned short>) T
    atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  const bool swapped = std::atomic_ref<T>(*address).compare_exchange_strong(
      expected, desired, std::memory_order_relaxed);
  if (!swapped) brigade::cuda_emulation::yield_thread();
  return expected;
}
// Wraps to 0 after `bound`.
inline unsigned atomicInc(unsigned* address, unsigned bound) {
  return brigade::cuda_emulation::atomic_update(
      address, [=](unsigned old) { return old >= bound ? 0 : old + 1; });
}

inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __nanosleep(unsigned) { brigade::cuda_emulation::yield_thread(); }
inline void __trap(BRIGADE_SITE) { brigade::cuda_emulation::device_trap("__trap", site); }
