#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/quads.cuh"

namespace brigade::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kQuadThreads) gather_rows_kernel(GatherRowsArgs args, bool wide) {
  const QuadPlace place = quad_place(args.width);
  if (place.column >= args.width) return;
  const float* from = args.x + static_cast<int64_t>(args.index[place.row]) * args.width;
  store_quad(args.out + place.row * args.width, place.column, args.width, wide,
             load_quad(from, place.column, args.width, wide));
}

}  // namespace

cudaError_t gather_rows(cudaStream_t stream, const GatherRowsArgs& args) {
  const bool wide = is_wide(args.x, args.width) && is_wide(args.out, args.width);
  return launch(gather_rows_kernel, quad_grid(args.rows, args.width), dim3(kQuadThreads), 0, stream,
                args, wide);
}

}  // namespace brigade::kernels::cuda
