// The memory of one microbatch's forward pass, planned for its limits at start, and the copy of a
// batch's indices into it; the end of the pass has its own (StepOutput). Host memory is the
// device's own kind, so that no copy holds up the step thread, which is the only user.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/core/host_buffer.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/step_model.h"

namespace brigade::runtime {

struct StepBuffers {
  static absl::StatusOr<StepBuffers> plan(kernels::Device& device, const ModelSpec& spec,
                                          const StepLimits& limits);
  // Enqueues copies of the batch's indices; it must stay unchanged until they have run. Not before
  // those of the last call have.
  absl::Status copy_batch(kernels::Stream& stream, const StepBatch& batch);

  // Indices of the batch.
  kernels::Buffer tokens, positions, row_sequence;  // i32 [max_rows]
  kernels::Buffer slots;                            // i64 [max_rows]
  kernels::Buffer block_tables;                     // i32 [max_sequences, max_blocks]
  // f32 [max_rows, width].
  kernels::Buffer hidden;         // the residual stream
  kernels::Buffer normed;         // input of attention or FFN; attention finds it filled
  kernels::Buffer qkv;            // width qkv_stride
  kernels::Buffer attention;      // width heads * head_dim
  kernels::Buffer dense_out;      // width hidden; dense layers only
  kernels::Buffer router_logits;  // width experts; MoE layers only
  kernels::Buffer gates;          // f32 [max_rows, top_k]
  kernels::Buffer experts;        // i32 [max_rows, top_k]
  kernels::Buffer attention_scratch, ffn_scratch;
  int64_t qkv_stride = 0;
  // Host copies.
  kernels::HostBuffer host_experts;  // i32 [moe layers, max_rows, top_k]
  size_t host_experts_stride = 0;    // from one MoE layer to the next
  // The batch's indices on their way, where device memory is not the host's.
  kernels::HostBuffer host_indices;
};

}  // namespace brigade::runtime
