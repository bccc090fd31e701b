#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/panel_product.h"

namespace brigade::kernels::cuda {

cudaError_t matmul(cudaStream_t stream, const MatmulArgs& args) {
  PanelProduct product;
  product.x = args.x;
  product.x_stride = args.x_stride;
  product.to = args.y;
  product.to_stride = args.y_stride;
  product.bias = args.bias;
  product.outputs = args.weights.outputs;
  product.accumulate = args.accumulate;
  return launch_product(stream, product, args.weights.format,
                        panel_group(args.weights, 0, args.rows));
}

}  // namespace brigade::kernels::cuda
