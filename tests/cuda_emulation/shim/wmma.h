// nvcuda::wmma for a host compiler: fragments of 16x16x16, 32x8x16 and 8x32x16 in f16 and bf16 with
// f32 (or f16) accumulators. Which lane holds which element is on purpose not a device's: code that
// relies on more than "equal fragments map equally" fails here. Products are summed by one FMA
// chain over k; tensor cores round differently.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "tests/cuda_emulation/shim/device_thread.h"

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

namespace emulated {

template <typename Use, int M, int N, int K>
struct Extent;
template <int M, int N, int K>
struct Extent<matrix_a, M, N, K> {
  static constexpr int kRows = M, kColumns = K;
};
template <int M, int N, int K>
struct Extent<matrix_b, M, N, K> {
  static constexpr int kRows = K, kColumns = N;
};
template <int M, int N, int K>
struct Extent<accumulator, M, N, K> {
  static constexpr int kRows = M, kColumns = N;
};

// Element of the matrix, row by row, behind x[item] of a lane. 37 is odd, so all are met once.
constexpr int element_of(int lane, int item, int elements) {
  return ((item * 32 + lane) * 37 + 11) % elements;
}

}  // namespace emulated

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static constexpr int kRows = emulated::Extent<Use, M, N, K>::kRows;
  static constexpr int kColumns = emulated::Extent<Use, M, N, K>::kColumns;
  static constexpr int kElements = kRows * kColumns;
  static constexpr int num_elements = kElements / 32;
  T x[num_elements];
};

template <typename Use, int M, int N, int K, typename T, typename Layout>
void fill_fragment(fragment<Use, M, N, K, T, Layout>& to, const T& value) {
  for (T& element : to.x) element = value;
}

namespace emulated {

// The address of x[item]'s element in a matrix at `base`.
template <typename Fragment, typename Pointer>
Pointer* element_at(Pointer* base, int lane, int item, unsigned leading, bool row_major_order) {
  const int element = element_of(lane, item, Fragment::kElements);
  const unsigned row = static_cast<unsigned>(element / Fragment::kColumns);
  const unsigned column = static_cast<unsigned>(element % Fragment::kColumns);
  return base + (row_major_order ? size_t{row} * leading + column : size_t{column} * leading + row);
}

// What a device demands of a matrix in memory; the fault names the caller's line.
inline void check_matrix(const void* base, unsigned leading, size_t element_bytes,
                         brigade::cuda_emulation::Site site) {
  if (reinterpret_cast<uintptr_t>(base) % 32 != 0) {
    brigade::cuda_emulation::device_trap(
        "a matrix fragment at an address that is no multiple of 32 bytes", site);
  }
  if (leading * element_bytes % 16 != 0) {
    brigade::cuda_emulation::device_trap(
        "a matrix fragment with a leading dimension of no multiple of 16 bytes", site);
  }
}

template <typename T>
inline constexpr bool kIsRowMajor = false;
template <>
inline constexpr bool kIsRowMajor<row_major> = true;

}  // namespace emulated

template <typename Use, int M, int N, int K, typename T, typename Layout>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& to, const T* from, unsigned leading,
                      BRIGADE_SITE) {
  emulated::check_matrix(from, leading, sizeof(T), site);
  const int lane = brigade::cuda_emulation::lane_id();
  for (int i = 0; i < to.num_elements; ++i) {
    to.x[i] = *emulated::element_at<fragment<Use, M, N, K, T, Layout>>(
        from, lane, i, leading, emulated::kIsRowMajor<Layout>);
  }
}
template <int M, int N, int K, typename T>
void load_matrix_sync(fragment<accumulator, M, N, K, T>& to, const T* from, unsigned leading,
                      layout_t layout, BRIGADE_SITE) {
  emulated::check_matrix(from, leading, sizeof(T), site);
  const int lane = brigade::cuda_emulation::lane_id();
  for (int i = 0; i < to.num_elements; ++i) {
    to.x[i] = *emulated::element_at<fragment<accumulator, M, N, K, T>>(from, lane, i, leading,
                                                                       layout == mem_row_major);
  }
}
template <int M, int N, int K, typename T>
void store_matrix_sync(T* to, const fragment<accumulator, M, N, K, T>& from, unsigned leading,
                       layout_t layout, BRIGADE_SITE) {
  emulated::check_matrix(to, leading, sizeof(T), site);
  const int lane = brigade::cuda_emulation::lane_id();
  for (int i = 0; i < from.num_elements; ++i) {
    *emulated::element_at<fragment<accumulator, M, N, K, T>>(to, lane, i, leading,
                                                             layout == mem_row_major) = from.x[i];
  }
}

// d = a * b + c. The lane that comes last computes it for all, before any other goes on.
template <int M, int N, int K, typename T, typename LayoutA, typename LayoutB, typename D,
          typename C>
void mma_sync(fragment<accumulator, M, N, K, D>& d,
              const fragment<matrix_a, M, N, K, T, LayoutA>& a,
              const fragment<matrix_b, M, N, K, T, LayoutB>& b,
              const fragment<accumulator, M, N, K, C>& c, BRIGADE_SITE) {
  using namespace brigade::cuda_emulation;
  struct LaneFragments {
    decltype(&a) a_;
    decltype(&b) b_;
    decltype(&c) c_;
    decltype(&d) d_;
  };
  const LaneFragments mine{&a, &b, &c, &d};
  const LaneFragments* const where = &mine;
  const LaneValues& all = warp_exchange(WarpOp::kMatrix, kNoLane, &where, sizeof(where), site);
  if (!completed_exchange()) return;
  float left[M * K], right[N * K], sum[M * N];  // right is stored column by column
  const LaneFragments* lanes[32];
  for (int lane = 0; lane < 32; ++lane) {
    std::memcpy(&lanes[lane], all.bytes[lane], sizeof(where));
    for (int i = 0; i < a.num_elements; ++i) {
      left[emulated::element_of(lane, i, M * K)] = static_cast<float>(lanes[lane]->a_->x[i]);
    }
    for (int i = 0; i < b.num_elements; ++i) {
      const int element = emulated::element_of(lane, i, K * N);
      right[element % N * K + element / N] = static_cast<float>(lanes[lane]->b_->x[i]);
    }
    for (int i = 0; i < c.num_elements; ++i) {
      sum[emulated::element_of(lane, i, M * N)] = static_cast<float>(lanes[lane]->c_->x[i]);
    }
  }
  for (int row = 0; row < M; ++row) {
    for (int column = 0; column < N; ++column) {
      float total = sum[row * N + column];
      for (int k = 0; k < K; ++k)
        total = __builtin_fmaf(left[row * K + k], right[column * K + k], total);
      sum[row * N + column] = total;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < d.num_elements; ++i) {
      lanes[lane]->d_->x[i] = static_cast<D>(sum[emulated::element_of(lane, i, M * N)]);
    }
  }
}

}  // namespace nvcuda::wmma
