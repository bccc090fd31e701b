#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/norm_row.cuh"

namespace brigade::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(RmsNormArgs args, bool wide) {
  const float* x = args.x + blockIdx.x * args.x_stride;
  float* out = args.out + blockIdx.x * args.out_stride;
  const auto values = [&](int column) { return load_quad(x, column, args.hidden, wide); };
  const float inverse = inverse_rms(values, args.hidden, args.eps);
  for (int column = threadIdx.x * kQuad; column < args.hidden; column += kNormTile) {
    store_quad(out, column, args.hidden, wide,
               normed(values(column), inverse, load_quad(args.weight, column, args.hidden, wide)));
  }
}

}  // namespace

cudaError_t rms_norm(cudaStream_t stream, const RmsNormArgs& args) {
  const bool wide = is_wide(args.x, args.x_stride) && is_wide(args.out, args.out_stride) &&
                    is_wide(args.weight, 0);
  return launch(rms_norm_kernel, dim3(args.rows), dim3(kNormThreads), 0, stream, args, wide);
}

}  // namespace brigade::kernels::cuda
