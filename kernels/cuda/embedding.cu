#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/quads.cuh"

namespace brigade::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kQuadThreads) embedding_kernel(EmbeddingArgs args, bool wide) {
  const QuadPlace place = quad_place(args.hidden);
  if (place.column >= args.hidden) return;
  const int64_t id = args.ids[place.row];
  float4 value = make_float4(0, 0, 0, 0);
  if (id >= 0 && id < args.vocab) {
    const T* table = static_cast<const T*>(args.table);
    value = load_quad(table + id * args.hidden, place.column, args.hidden, wide);
  }
  store_quad(args.out + place.row * args.hidden, place.column, args.hidden, wide, value);
}

template <typename T>
cudaError_t run(cudaStream_t stream, const EmbeddingArgs& args) {
  const bool wide =
      is_wide(static_cast<const T*>(args.table), args.hidden) && is_wide(args.out, args.hidden);
  return launch(embedding_kernel<T>, quad_grid(args.rows, args.hidden), dim3(kQuadThreads), 0,
                stream, args, wide);
}

}  // namespace

cudaError_t embedding(cudaStream_t stream, const EmbeddingArgs& args) {
  return with_element(args.table_dtype, [&](auto element) {
    return run<decltype(element)>(stream, args);
  });
}

}  // namespace brigade::kernels::cuda
