// The ops of a step, cut where it waits for experts. The first segment is the embedding and the
// layers up to the first MoE layer's choice of experts; each further one begins with what the
// experts answered and ends with the next choice; the last one ends with the last layer's hidden
// state. A dense model has one segment.
//
// Enqueues and never waits. Part of one ForwardPass, on its stream; step thread only.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "kernels/core/device.h"
#include "kernels/ops/moe_args.h"
#include "runtime/model/kv_cache.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/step_buffers.h"
#include "runtime/model/step_shape.h"
#include "runtime/model/weights.h"

namespace brigade::runtime {

class StepSegments {
 public:
  // All must outlive the object; `buffers` may be planned later.
  StepSegments(const ModelSpec& spec, const DeviceWeights& weights, const KvCache& kv,
               const StepBuffers& buffers);

  int count() const { return static_cast<int>(routed_.size()) + 1; }
  // The layer whose experts are chosen at the end of a segment; the last segment has none.
  int routed_layer(int segment) const { return routed_[static_cast<size_t>(segment)]; }

  // `answers`: to the layer routed by the segment before. What is enqueued depends on the arguments
  // alone. Whoever calls waits for the point behind a choice before reading chosen_experts().
  absl::Status enqueue(kernels::Stream& stream, int segment, const StepShape& shape,
                       const ExpertAnswers& answers);

  // Host [rows, top_k].
  int32_t* chosen_experts(int moe_layer) const;

 private:
  absl::Status embed(kernels::Stream& stream, const StepShape& shape);
  absl::Status run_layers(kernels::Stream& stream, int first, int end, const StepShape& shape);
  absl::Status attend(kernels::Stream& stream, int layer, const StepShape& shape);
  absl::Status paged_attention(kernels::Stream& stream, int layer, const StepShape& shape);
  absl::Status route(kernels::Stream& stream, int layer, const StepShape& shape);
  absl::Status run_dense(kernels::Stream& stream, int layer, const StepShape& shape);
  absl::Status end_layer(kernels::Stream& stream, int layer, const StepShape& shape,
                         kernels::CombineArgs args);
  absl::Status norm_hidden(kernels::Stream& stream, const kernels::Buffer& weight, int rows);

  const ModelSpec& spec_;
  const DeviceWeights& weights_;
  const KvCache& kv_;
  const StepBuffers& buffers_;
  std::vector<int> routed_;                         // [segments - 1]
  std::vector<kernels::ExpertGroup> dense_groups_;  // [layer]; read by the stream while a step runs
};

}  // namespace brigade::runtime
