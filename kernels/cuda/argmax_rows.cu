#include <limits>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/lanes16.cuh"
#include "kernels/cuda/quads.cuh"
#include "kernels/ops/sampling_pieces.h"

namespace brigade::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

__device__ __forceinline__ ArgmaxPiece nothing() { return {-kInfinity, kNoToken, 0}; }

// The larger, ties to the lower id; a piece without an id loses.
__device__ __forceinline__ ArgmaxPiece joined(ArgmaxPiece a, ArgmaxPiece b) {
  const bool take_b = b.id != kNoToken && (a.id == kNoToken || b.value > a.value ||
                                           (b.value == a.value && b.id < a.id));
  ArgmaxPiece best = take_b ? b : a;
  best.broken = a.broken | b.broken;
  return best;
}

__device__ __forceinline__ void look_at(float value, int id, ArgmaxPiece& best) {
  best.broken |= !(value < kInfinity);  // NaN too
  if (value > best.value) best = {value, id, best.broken};
}

__device__ ArgmaxPiece best_of_warp(ArgmaxPiece best) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    best = joined(best, {__shfl_xor_sync(kFullWarp, best.value, apart),
                         __shfl_xor_sync(kFullWarp, best.id, apart),
                         __shfl_xor_sync(kFullWarp, best.broken, apart)});
  }
  return best;
}

// A block a piece of a row.
__global__ void __launch_bounds__(kThreads)
    argmax_pieces_kernel(ArgmaxRowsArgs args, int pieces, bool wide) {
  GPU_SHARED(ArgmaxPiece, of_warps, kWarps);
  const int64_t row = blockIdx.x / pieces;
  const int first = static_cast<int>(blockIdx.x - row * pieces) * kArgmaxPiece;
  const int last = min(first + kArgmaxPiece, args.vocab);
  const float* logits = args.logits + row * args.vocab;
  ArgmaxPiece best = nothing();
  for (int i = first + static_cast<int>(threadIdx.x) * kQuad; i < last; i += kThreads * kQuad) {
    if (wide) {
      const float4 four = load_quad(logits + i);
      look_at(four.x, i, best);
      look_at(four.y, i + 1, best);
      look_at(four.z, i + 2, best);
      look_at(four.w, i + 3, best);
    } else {
      for (int j = i; j < min(i + kQuad, last); ++j) look_at(logits[j], j, best);
    }
  }
  best = best_of_warp(best);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  best = best_of_warp(threadIdx.x < kWarps ? of_warps[threadIdx.x] : nothing());
  if (threadIdx.x == 0) static_cast<ArgmaxPiece*>(args.scratch)[blockIdx.x] = best;
}

// A warp a row.
__global__ void __launch_bounds__(kWarp) argmax_join_kernel(ArgmaxRowsArgs args, int pieces) {
  const ArgmaxPiece* of_row =
      static_cast<const ArgmaxPiece*>(args.scratch) + static_cast<int64_t>(blockIdx.x) * pieces;
  ArgmaxPiece best = nothing();
  for (int i = threadIdx.x; i < pieces; i += kWarp) best = joined(best, of_row[i]);
  best = best_of_warp(best);
  if (threadIdx.x == 0) args.ids[blockIdx.x] = best.broken != 0 ? kNoToken : best.id;
}

}  // namespace

cudaError_t argmax_rows(cudaStream_t stream, const ArgmaxRowsArgs& args) {
  const int pieces = static_cast<int>(ceil_div(args.vocab, kArgmaxPiece));
  const auto blocks = static_cast<unsigned>(int64_t{args.rows} * pieces);
  const cudaError_t error = launch(argmax_pieces_kernel, dim3(blocks), dim3(kThreads), 0, stream,
                                   args, pieces, is_wide(args.logits, args.vocab));
  if (error != cudaSuccess) return error;
  return launch(argmax_join_kernel, dim3(args.rows), dim3(kWarp), 0, stream, args, pieces);
}

}  // namespace brigade::kernels::cuda
