#include <algorithm>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/expert_rows.h"
#include "kernels/cuda/panel_product.h"

namespace brigade::kernels::cuda {
namespace {

// One product of every accepted group.
cudaError_t run(cudaStream_t stream, const ExpertFfnArgs& args, const PanelProduct& product,
                PackedMatrix ExpertWeights::*matrix, bool (*takes)(const ExpertGroup&)) {
  PanelLauncher launcher(stream, product);
  for (int g = 0; g < args.num_groups; ++g) {
    const ExpertGroup& group = args.groups[g];
    if (group.count <= 0 || !takes(group)) continue;
    PanelGroup rows = panel_group(group.weights.*matrix, group.first, group.count);
    if (product.swiglu) rows.units = group.weights.ffn;
    launcher.add((group.weights.*matrix).format, rows);
  }
  return launcher.finish();
}

}  // namespace

int max_ffn(const ExpertFfnArgs& args) {
  int most = 0;
  for (int g = 0; g < args.num_groups; ++g) {
    if (args.groups[g].count > 0) most = std::max(most, args.groups[g].weights.ffn);
  }
  return most;
}

cudaError_t stream_experts(cudaStream_t stream, const ExpertFfnArgs& args, float* hidden,
                           int64_t hidden_stride, bool (*takes)(const ExpertGroup&)) {
  PanelProduct gate_up;
  gate_up.x = args.x;
  gate_up.x_stride = args.hidden;
  gate_up.row_index = args.row_index;
  gate_up.to = hidden;
  gate_up.to_stride = hidden_stride;
  gate_up.swiglu = true;
  const cudaError_t error = run(stream, args, gate_up, &ExpertWeights::gate_up, takes);
  if (error != cudaSuccess) return error;

  PanelProduct down;
  down.x = hidden;
  down.x_stride = hidden_stride;
  down.to = args.out;
  down.to_stride = args.hidden;
  down.out_index = args.out_index;
  down.outputs = args.hidden;
  down.dtype = args.out_dtype;
  return run(stream, args, down, &ExpertWeights::down, takes);
}

// Scratch: the hidden activations, f32 [total][padded ffn of the largest expert].
cudaError_t expert_ffn(cudaStream_t stream, const ExpertFfnArgs& args) {
  return stream_experts(stream, args, static_cast<float*>(args.scratch),
                        padded_outputs(max_ffn(args)), [](const ExpertGroup&) { return true; });
}

size_t expert_ffn_scratch_bytes(int max_total, int, int max_ffn) {
  return sizeof(float) * static_cast<size_t>(max_total) *
         static_cast<size_t>(padded_outputs(max_ffn));
}

}  // namespace brigade::kernels::cuda
