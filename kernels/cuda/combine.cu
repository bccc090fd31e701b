#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/norm_row.cuh"

namespace brigade::kernels::cuda {
namespace {

// The new residual of four columns: the gated answers summed in rising k, then one addition.
template <typename T>
__device__ __forceinline__ float4 combined(const CombineArgs& args, int64_t row, int column,
                                           bool wide) {
  const T* answers = static_cast<const T*>(args.answers) + row * args.top_k * args.hidden;
  const float* gates = args.gates == nullptr ? nullptr : args.gates + row * args.top_k;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
  for (int k = 0; k < args.top_k; ++k) {
    const float gate = gates == nullptr ? 1.0f : gates[k];
    const T* from = answers + static_cast<int64_t>(k) * args.hidden;
    const float4 answer = load_quad(from, column, args.hidden, wide);
    sum = make_float4(mul_add(gate, answer.x, sum.x), mul_add(gate, answer.y, sum.y),
                      mul_add(gate, answer.z, sum.z), mul_add(gate, answer.w, sum.w));
  }
  const float4 old = load_quad(args.residual + row * args.hidden, column, args.hidden, wide);
  return make_float4(__fadd_rn(old.x, sum.x), __fadd_rn(old.y, sum.y), __fadd_rn(old.z, sum.z),
                     __fadd_rn(old.w, sum.w));
}

template <typename T>
__global__ void __launch_bounds__(kQuadThreads) combine_kernel(CombineArgs args, bool wide) {
  const QuadPlace place = quad_place(args.hidden);
  if (place.column >= args.hidden) return;
  store_quad(args.residual + place.row * args.hidden, place.column, args.hidden, wide,
             combined<T>(args, place.row, place.column, wide));
}

// A block has a whole row: the norm needs all of it.
template <typename T>
__global__ void __launch_bounds__(kNormThreads) combine_norm_kernel(CombineArgs args, bool wide) {
  const int64_t row = blockIdx.x;
  float* residual = args.residual + row * args.hidden;
  const auto add_answers = [&](int column) {
    if (column >= args.hidden) return make_float4(0, 0, 0, 0);
    const float4 value = combined<T>(args, row, column, wide);
    store_quad(residual, column, args.hidden, wide, value);
    return wide ? value : load_quad(residual, column, args.hidden, false);  // zero past the end
  };
  const float inverse = inverse_rms(add_answers, args.hidden, args.norm_eps);
  for (int column = threadIdx.x * kQuad; column < args.hidden; column += kNormTile) {
    const float4 value = load_quad(residual, column, args.hidden, wide);
    const float4 weight = load_quad(args.norm_weight, column, args.hidden, wide);
    store_quad(args.normed + row * args.hidden, column, args.hidden, wide,
               normed(value, inverse, weight));
  }
}

template <typename T>
cudaError_t run(cudaStream_t stream, const CombineArgs& args) {
  const bool wide = is_wide(static_cast<const T*>(args.answers), args.hidden) &&
                    is_wide(args.residual, args.hidden) && is_wide(args.norm_weight, 0) &&
                    is_wide(args.normed, 0);
  if (args.norm_weight != nullptr) {
    return launch(combine_norm_kernel<T>, dim3(args.rows), dim3(kNormThreads), 0, stream, args,
                  wide);
  }
  return launch(combine_kernel<T>, quad_grid(args.rows, args.hidden), dim3(kQuadThreads), 0, stream,
                args, wide);
}

}  // namespace

cudaError_t combine(cudaStream_t stream, const CombineArgs& args) {
  return with_element(args.answer_dtype, [&](auto element) {
    return run<decltype(element)>(stream, args);
  });
}

}  // namespace brigade::kernels::cuda
