// Choosing among the values of one row by one block: the place of the n-th best, a stable
// compaction, sums in order. Results do not depend on how threads are scheduled. Order of values:
// larger first, ties to the lower index; -inf is out of everything.
#pragma once

#include <limits>

#include "kernels/cuda/lanes16.cuh"

namespace brigade::kernels::cuda {

inline constexpr int kSelectThreads = 512;
inline constexpr int kSelectWarps = kSelectThreads / kWarp;
inline constexpr int kBins = 256;
inline constexpr double kOut = -std::numeric_limits<double>::infinity();

// Shared by the steps of one block; each step leaves it free for the next.
struct SelectShared {
  double tile[2][kSelectThreads];
  double sum;
  double maxima[kSelectWarps];
  int bins[kBins];
  int warps[kSelectWarps];
  int digit, remaining, in_digit;
};

// A double as an integer of the same order; both zeros are one.
__device__ __forceinline__ uint64_t order_key(double value) {
  if (value == 0) return uint64_t{1} << 63;
  const auto bits = static_cast<uint64_t>(__double_as_longlong(value));
  return (bits >> 63) != 0 ? ~bits : bits | uint64_t{1} << 63;
}
__device__ __forceinline__ bool is_out(double value) { return value == kOut; }

// Everything up to and including (key, index) in the order of values.
struct Cut {
  uint64_t key;
  int index;
};
__device__ __forceinline__ bool within(Cut cut, double value, int index) {
  const uint64_t key = order_key(value);
  return key > cut.key || (key == cut.key && index <= cut.index);
}

// The sum over the block, in every thread.
__device__ __forceinline__ int block_sum(int value, SelectShared* shared) {
  value = __reduce_add_sync(kFullWarp, value);
  if (threadIdx.x % kWarp == 0) shared->warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < kSelectWarps; ++i) sum += shared->warps[i];
  __syncthreads();
  return sum;
}

__device__ __forceinline__ double block_max(double value, SelectShared* shared) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    value = fmax(value, __shfl_xor_sync(kFullWarp, value, apart));
  }
  if (threadIdx.x % kWarp == 0) shared->maxima[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = shared->maxima[0];
  for (int i = 1; i < kSelectWarps; ++i) value = fmax(value, shared->maxima[i]);
  __syncthreads();
  return value;
}

// Eleven digits of eight bits, the most significant first: the key, then the index turned round.
inline constexpr int kKeyDigits = 8, kDigits = 11, kIndexBits = 24;
struct Composite {
  uint64_t key;
  uint32_t turned;  // below 2^24
};
__device__ __forceinline__ int digit_of(Composite c, int level) {
  const int shift = level < kKeyDigits ? 56 - 8 * level : 16 - 8 * (level - kKeyDigits);
  return static_cast<int>((level < kKeyDigits ? c.key >> shift : c.turned >> shift) & 255);
}
// Equal in the digits before `level`.
__device__ __forceinline__ bool equal_before(Composite a, Composite b, int level) {
  if (level == 0) return true;
  if (level <= kKeyDigits) return (a.key ^ b.key) >> (64 - 8 * level) == 0;
  return a.key == b.key && (a.turned ^ b.turned) >> (kIndexBits - 8 * (level - kKeyDigits)) == 0;
}
__device__ __forceinline__ Composite with_digit(Composite c, int level, int digit) {
  if (level < kKeyDigits) {
    c.key |= static_cast<uint64_t>(digit) << (56 - 8 * level);
  } else {
    c.turned |= static_cast<uint32_t>(digit) << (16 - 8 * (level - kKeyDigits));
  }
  return c;
}
__device__ __forceinline__ Composite composite_of(double value, int index) {
  return {order_key(value), (1u << kIndexBits) - 1 - static_cast<uint32_t>(index)};
}

// Counts the values that share `prefix` by their digit at `level`, then finds the digit in which
// the wanted one lies. Atomics only count: no order shows.
__device__ __forceinline__ void find_digit(const double* values, int count, Composite prefix, int level,
                                  int wanted, SelectShared* shared) {
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads) shared->bins[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kSelectThreads) {
    const double value = values[i];
    if (is_out(value)) continue;
    const Composite c = composite_of(value, i);
    if (equal_before(c, prefix, level)) atomicAdd(&shared->bins[digit_of(c, level)], 1);
  }
  __syncthreads();
  if (threadIdx.x < kBins) {
    int above = 0;
    for (int i = static_cast<int>(threadIdx.x) + 1; i < kBins; ++i) above += shared->bins[i];
    const int mine = shared->bins[threadIdx.x];
    if (above < wanted && wanted <= above + mine) {
      shared->digit = static_cast<int>(threadIdx.x);
      shared->remaining = wanted - above;
      shared->in_digit = mine;
    }
  }
  __syncthreads();
}

// The cut behind the `wanted` best of values[0, count); so many must be there, at least one.
__device__ __forceinline__ Cut find_cut(const double* values, int count, int wanted, SelectShared* shared) {
  Composite prefix{0, 0};
  for (int level = 0; level < kDigits; ++level) {
    find_digit(values, count, prefix, level, wanted, shared);
    prefix = with_digit(prefix, level, shared->digit);
    wanted = shared->remaining;
    const bool all_of_digit = shared->in_digit == wanted;
    __syncthreads();
    if (all_of_digit) break;
  }
  return {prefix.key, static_cast<int>((1u << kIndexBits) - 1 - prefix.turned)};
}

// Calls write(i, place) for every i in [0, count) with keep(i), places rising with i. Returns how
// many. Both are called before and after a barrier, so that write() may go to where keep() reads,
// at or before i.
template <class Keep, class Read, class Write>
__device__ int compact(int count, const Keep& keep, const Read& read, const Write& write,
                       SelectShared* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned lanes_before = (1u << (threadIdx.x % kWarp)) - 1;
  int next = 0;
  for (int start = 0; start < count; start += kSelectThreads) {
    const int i = start + static_cast<int>(threadIdx.x);
    const bool kept = i < count && keep(i);
    const auto element = kept ? read(i) : decltype(read(i)){};
    const unsigned votes = __ballot_sync(kFullWarp, kept);
    if (threadIdx.x % kWarp == 0) shared->warps[warp] = __popc(votes);
    __syncthreads();
    int before = __popc(votes & lanes_before), all = 0;
    for (int w = 0; w < kSelectWarps; ++w) {
      before += w < warp ? shared->warps[w] : 0;
      all += shared->warps[w];
    }
    __syncthreads();
    if (kept) write(next + before, element);
    next += all;
  }
  __syncthreads();
  return next;
}

// values[0] + values[1] + ... by one thread, from shared memory while the next tile is loaded. That
// one chain is what the law is defined by; it bounds how fast a row without top-k can be.
__device__ __forceinline__ double sum_in_order(const double* values, int count, SelectShared* shared) {
  double sum = 0;
  for (int start = 0; start < count; start += kSelectThreads) {
    double* tile = shared->tile[start / kSelectThreads % 2];
    const int i = start + static_cast<int>(threadIdx.x);
    if (i < count) tile[threadIdx.x] = values[i];
    __syncthreads();
    if (threadIdx.x == 0) {
      const int columns = min(kSelectThreads, count - start);
#pragma unroll 8
      for (int j = 0; j < columns; ++j) sum = __dadd_rn(sum, tile[j]);
    }
  }
  if (threadIdx.x == 0) shared->sum = sum;
  __syncthreads();
  sum = shared->sum;
  __syncthreads();
  return sum;
}

}  // namespace brigade::kernels::cuda
