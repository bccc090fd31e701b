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
  PanelGroup group;
  group.panels = args.weights.data;
  group.count = args.rows;
  group.k = static_cast<int>(args.weights.k);
  group.num_panels = static_cast<int>(padded_outputs(args.weights.outputs) / kPanelOutputs);
  PanelLauncher launcher(stream, product);
  launcher.add(args.weights.format, group);
  return launcher.finish();
}

}  // namespace brigade::kernels::cuda
