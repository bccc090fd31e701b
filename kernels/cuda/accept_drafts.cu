#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/gpu.cuh"

namespace brigade::kernels::cuda {
namespace {

constexpr int kThreads = 64;

// A thread a sequence: a handful of comparisons each.
__global__ void __launch_bounds__(kThreads) accept_drafts_kernel(AcceptDraftsArgs args) {
  const int64_t sequence = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (sequence >= args.sequences) return;
  const int32_t* drafts = args.drafts + sequence * args.max_drafts;
  const int32_t* drawn = args.drawn + args.first_row[sequence];
  int accepted = 0;
  while (accepted < args.num_drafts[sequence] && drafts[accepted] == drawn[accepted]) ++accepted;
  args.accepted[sequence] = accepted;
  args.next_token[sequence] = drawn[accepted];
}

}  // namespace

cudaError_t accept_drafts(cudaStream_t stream, const AcceptDraftsArgs& args) {
  return launch(accept_drafts_kernel,
                dim3(static_cast<unsigned>(ceil_div(args.sequences, kThreads))), dim3(kThreads), 0,
                stream, args);
}

}  // namespace brigade::kernels::cuda
