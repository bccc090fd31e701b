// CUDA's warp and block synchronisation by their own names, over device_thread.h. Kernel code only.
#pragma once

#include <bit>
#include <cstring>
#include <type_traits>

#include "tests/cuda_emulation/shim/device_thread.h"

namespace brigade::cuda_emulation {

// The value of lane `source` within the caller's segment of `width` lanes, or the caller's own.
template <typename T>
T shuffle(unsigned mask, T value, int source, Site site) {
  static_assert(sizeof(T) <= kLaneBytes && std::is_trivially_copyable_v<T>);
  const LaneValues& all = warp_exchange(WarpOp::kShuffle, mask, &value, sizeof(T), site);
  T result;
  std::memcpy(&result, all.bytes[source], sizeof(T));
  return result;
}

inline uint32_t vote(unsigned mask, bool predicate, Site site) {
  const unsigned char yes = predicate;
  const LaneValues& all = warp_exchange(WarpOp::kVote, mask, &yes, 1, site);
  uint32_t result = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((all.lanes >> lane & 1u) != 0 && all.bytes[lane][0] != 0) result |= 1u << lane;
  }
  return result;
}

// Folds the values of all lanes of `mask` in lane order.
template <typename T, typename Fold>
T reduce_lanes(unsigned mask, T value, Fold fold, Site site) {
  const LaneValues& all = warp_exchange(WarpOp::kReduce, mask, &value, sizeof(T), site);
  bool first = true;
  T result{};
  for (int lane = 0; lane < 32; ++lane) {
    if ((all.lanes >> lane & 1u) == 0) continue;
    T other;
    std::memcpy(&other, all.bytes[lane], sizeof(T));
    result = first ? other : fold(result, other);
    first = false;
  }
  return result;
}

}  // namespace brigade::cuda_emulation

inline void __syncthreads(BRIGADE_SITE) {
  brigade::cuda_emulation::block_barrier(brigade::cuda_emulation::BarrierKind::kPlain, 0, site);
}
inline int __syncthreads_count(int predicate, BRIGADE_SITE) {
  return brigade::cuda_emulation::block_barrier(brigade::cuda_emulation::BarrierKind::kCount,
                                                predicate, site);
}
inline int __syncthreads_and(int predicate, BRIGADE_SITE) {
  return brigade::cuda_emulation::block_barrier(brigade::cuda_emulation::BarrierKind::kAnd,
                                                predicate, site);
}
inline int __syncthreads_or(int predicate, BRIGADE_SITE) {
  return brigade::cuda_emulation::block_barrier(brigade::cuda_emulation::BarrierKind::kOr,
                                                predicate, site);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, BRIGADE_SITE) {
  brigade::cuda_emulation::warp_exchange(brigade::cuda_emulation::WarpOp::kSync, mask, nullptr, 0,
                                         site);
}
inline unsigned __activemask() { return brigade::cuda_emulation::active_lanes(); }
inline int __any_sync(unsigned mask, int predicate, BRIGADE_SITE) {
  return brigade::cuda_emulation::vote(mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, BRIGADE_SITE) {
  return brigade::cuda_emulation::vote(mask, predicate == 0, site) == 0;
}
inline unsigned __ballot_sync(unsigned mask, int predicate, BRIGADE_SITE) {
  return brigade::cuda_emulation::vote(mask, predicate != 0, site);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, BRIGADE_SITE) {
  const int lane = brigade::cuda_emulation::lane_id();
  const int from = (lane & ~(width - 1)) | (source & (width - 1));
  return brigade::cuda_emulation::shuffle(mask, value, from, site);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, BRIGADE_SITE) {
  const int lane = brigade::cuda_emulation::lane_id();
  const int from = lane ^ lane_mask;
  // Into a later segment: the caller's own value; into an earlier one it is allowed.
  const bool inside = from < (lane & ~(width - 1)) + width;
  return brigade::cuda_emulation::shuffle(mask, value, inside ? from : lane, site);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, BRIGADE_SITE) {
  const int lane = brigade::cuda_emulation::lane_id();
  const int from = lane - static_cast<int>(delta);
  return brigade::cuda_emulation::shuffle(mask, value, from >= (lane & ~(width - 1)) ? from : lane,
                                          site);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, BRIGADE_SITE) {
  const int lane = brigade::cuda_emulation::lane_id();
  const int from = lane + static_cast<int>(delta);
  const bool inside = from < (lane & ~(width - 1)) + width;
  return brigade::cuda_emulation::shuffle(mask, value, inside ? from : lane, site);
}

// The lanes of `mask` whose value has the caller's bits.
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, BRIGADE_SITE) {
  using brigade::cuda_emulation::WarpOp;
  const auto& all =
      brigade::cuda_emulation::warp_exchange(WarpOp::kMatch, mask, &value, sizeof(T), site);
  unsigned same = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((all.lanes >> lane & 1u) != 0 && std::memcmp(all.bytes[lane], &value, sizeof(T)) == 0) {
      same |= 1u << lane;
    }
  }
  return same;
}
template <typename T>
unsigned __match_all_sync(unsigned mask, T value, int* all_equal, BRIGADE_SITE) {
  const unsigned same = __match_any_sync(mask, value, site);
  *all_equal = same == (mask & brigade::cuda_emulation::active_lanes());
  return *all_equal != 0 ? same : 0;
}

#define BRIGADE_WARP_REDUCE(name, Type, expression)                                       \
  inline Type name(unsigned mask, Type value, BRIGADE_SITE) {                             \
    return brigade::cuda_emulation::reduce_lanes(                                         \
        mask, value, [](Type a, Type b) { return static_cast<Type>(expression); }, site); \
  }
BRIGADE_WARP_REDUCE(__reduce_add_sync, unsigned, a + b)
BRIGADE_WARP_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
BRIGADE_WARP_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
BRIGADE_WARP_REDUCE(__reduce_add_sync, int, static_cast<unsigned>(a) + static_cast<unsigned>(b))
BRIGADE_WARP_REDUCE(__reduce_min_sync, int, a < b ? a : b)
BRIGADE_WARP_REDUCE(__reduce_max_sync, int, a > b ? a : b)
BRIGADE_WARP_REDUCE(__reduce_and_sync, unsigned, a& b)
BRIGADE_WARP_REDUCE(__reduce_or_sync, unsigned, a | b)
BRIGADE_WARP_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef BRIGADE_WARP_REDUCE
