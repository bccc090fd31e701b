#include <algorithm>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/panel_product.h"

namespace brigade::kernels::cuda {
namespace {

PanelGroup rows_of(const ExpertGroup& group, const PackedMatrix& matrix) {
  PanelGroup result;
  result.panels = matrix.data;
  result.first = group.first;
  result.count = group.count;
  result.k = static_cast<int>(matrix.k);
  result.num_panels = static_cast<int>(padded_outputs(matrix.outputs) / kPanelOutputs);
  return result;
}

cudaError_t run(cudaStream_t stream, const ExpertFfnArgs& args, const PanelProduct& product,
                PackedMatrix ExpertWeights::*matrix) {
  PanelLauncher launcher(stream, product);
  for (int g = 0; g < args.num_groups; ++g) {
    const ExpertGroup& group = args.groups[g];
    if (group.count <= 0) continue;
    const PackedMatrix& weights = group.weights.*matrix;
    launcher.add(weights.format, rows_of(group, weights));
  }
  return launcher.finish();
}

}  // namespace

// Scratch: the hidden activations, f32 [total][padded ffn of the largest expert].
cudaError_t expert_ffn(cudaStream_t stream, const ExpertFfnArgs& args) {
  int max_ffn = 0;
  for (int g = 0; g < args.num_groups; ++g) {
    if (args.groups[g].count > 0) max_ffn = std::max(max_ffn, args.groups[g].weights.ffn);
  }
  PanelProduct gate_up;
  gate_up.x = args.x;
  gate_up.x_stride = args.hidden;
  gate_up.row_index = args.row_index;
  gate_up.to = args.scratch;
  gate_up.to_stride = padded_outputs(max_ffn);
  gate_up.swiglu = true;
  const cudaError_t error = run(stream, args, gate_up, &ExpertWeights::gate_up);
  if (error != cudaSuccess) return error;

  PanelProduct down;
  down.x = static_cast<const float*>(args.scratch);
  down.x_stride = gate_up.to_stride;
  down.to = args.out;
  down.to_stride = args.hidden;
  down.out_index = args.out_index;
  down.outputs = args.hidden;
  down.dtype = args.out_dtype;
  return run(stream, args, down, &ExpertWeights::down);
}

size_t expert_ffn_scratch_bytes(int max_total, int, int max_ffn) {
  return sizeof(float) * static_cast<size_t>(max_total) *
         static_cast<size_t>(padded_outputs(max_ffn));
}

}  // namespace brigade::kernels::cuda
