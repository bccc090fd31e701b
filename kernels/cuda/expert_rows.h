// The expert FFN without the library: both products of every expert through PanelLauncher.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/moe_args.h"

namespace brigade::kernels::cuda {

// The largest ffn of the experts that have rows.
int max_ffn(const ExpertFfnArgs& args);

// The groups that `takes` accepts. hidden: f32 [total, hidden_stride] in scratch memory.
cudaError_t stream_experts(cudaStream_t stream, const ExpertFfnArgs& args, float* hidden,
                           int64_t hidden_stride, bool (*takes)(const ExpertGroup&));

}  // namespace brigade::kernels::cuda
