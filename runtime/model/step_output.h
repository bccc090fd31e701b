// The end of a forward pass: final norm and output matrix of the rows whose logits are wanted, and
// their way to the host. Owns the memory of both, planned at start. Part of one ForwardPass, on its
// stream; step thread only.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/core/host_buffer.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/step_model.h"
#include "runtime/model/weights.h"

namespace brigade::runtime {

class StepOutput {
 public:
  // `spec` and `weights` must outlive the result.
  static absl::StatusOr<StepOutput> plan(kernels::Device& device, const ModelSpec& spec,
                                         const DeviceWeights& weights, const StepLimits& limits);
  StepOutput(StepOutput&&) = default;

  // Of a step that begins: enqueues what says which rows are wanted. Not before the work of the
  // last step has run.
  absl::Status begin(kernels::Stream& stream, const StepBatch& batch);
  // Enqueues the logits of the wanted rows of `hidden`, f32 [rows, hidden].
  absl::Status compute(kernels::Stream& stream, const float* hidden);
  // Enqueues their way to the host.
  absl::Status copy_to_host(kernels::Stream& stream);
  // In place of both: no row has come to an end, all logits are NaN. At once.
  void leave_out();

  // Once what was enqueued has run: host [vocab].
  std::span<const float> logits(int index) const;

 private:
  StepOutput(const ModelSpec& spec, const DeviceWeights& weights)
      : spec_(&spec), weights_(&weights) {}

  const ModelSpec* spec_;
  const DeviceWeights* weights_;
  kernels::Buffer index_;           // i32 [max_logit_rows]: wanted rows of the step
  kernels::Buffer gathered_;        // f32 [max_logit_rows, hidden]
  kernels::Buffer logits_;          // f32 [max_logit_rows, vocab]
  kernels::HostBuffer host_index_;  // of index_, on its way
  kernels::HostBuffer host_logits_;
  int rows_ = 0;  // wanted, of the step in progress
};

}  // namespace brigade::runtime
