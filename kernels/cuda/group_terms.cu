#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/lanes16.cuh"

namespace brigade::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// The block's sum in every thread. `warp_sums`: shared, kWarps.
__device__ int block_sum(int value, int* warp_sums) {
  value = __reduce_add_sync(kFullWarp, value);
  if (threadIdx.x % kWarp == 0) warp_sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += warp_sums[i];
  __syncthreads();
  return sum;
}

// A block an expert. Each reads all terms twice: to find where its group starts and to place its
// terms in rising order. No block waits for another, nothing is added atomically.
__global__ void __launch_bounds__(kThreads) group_terms_kernel(GroupTermsArgs args) {
  GPU_SHARED(int, warp_sums, kWarps);
  const int expert = static_cast<int>(blockIdx.x);
  int below = 0, equal = 0;
  for (int term = threadIdx.x; term < args.terms; term += kThreads) {
    const int chosen = args.experts[term];
    below += chosen >= 0 && chosen < expert;
    equal += chosen == expert;
    if (expert == 0 && (chosen < 0 || chosen >= args.num_experts)) args.position[term] = -1;
  }
  const int first = block_sum(below, warp_sums);
  const int count = block_sum(equal, warp_sums);
  if (threadIdx.x == 0) {
    args.counts[expert] = count;
    args.offsets[expert] = first;
    if (expert == args.num_experts - 1) args.offsets[args.num_experts] = first + count;
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned lanes_before = (1u << (threadIdx.x % kWarp)) - 1;
  int next = first;
  for (int start = 0; start < args.terms && next < first + count; start += kThreads) {
    const int term = start + static_cast<int>(threadIdx.x);
    const bool mine = term < args.terms && args.experts[term] == expert;
    const unsigned votes = __ballot_sync(kFullWarp, mine);
    if (threadIdx.x % kWarp == 0) warp_sums[warp] = __popc(votes);
    __syncthreads();
    int before = __popc(votes & lanes_before), all = 0;
    for (int i = 0; i < kWarps; ++i) {
      before += i < warp ? warp_sums[i] : 0;
      all += warp_sums[i];
    }
    __syncthreads();
    if (mine) {
      args.position[term] = next + before;
      args.order[next + before] = term;
    }
    next += all;
  }
}

}  // namespace

cudaError_t group_terms(cudaStream_t stream, const GroupTermsArgs& args) {
  return launch(group_terms_kernel, dim3(args.num_experts), dim3(kThreads), 0, stream, args);
}

}  // namespace brigade::kernels::cuda
