// The end of a forward pass: final norm and output matrix of the rows that a token is to follow,
// and of each row what the batch asks for on its way to the host. Owns the memory of all that,
// planned at start. Part of one ForwardPass, on its stream; step thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
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
  // Enqueues what is wanted of the rows of `hidden`, f32 [rows, hidden]. Recorded as part of a
  // graph: every number that it puts into a launch must be in StepShape.
  absl::Status compute(kernels::Stream& stream, const float* hidden);
  int rows() const { return rows_; }
  int copied_rows() const { return first_best_; }
  int law_rows() const { return rows_ - first_law_; }
  // Enqueues its way to the host.
  absl::Status copy_to_host(kernels::Stream& stream);
  // In place of both: no row has come to an end, none may be sampled. At once.
  void leave_out();

  // Once what was enqueued has run. INTERNAL when the device gave what cannot be.
  absl::Status check() const;
  // Then, until begin(), as StepModel has it.
  std::span<const float> logits(int index) const;
  RowLaw law(int index) const;

 private:
  StepOutput(const ModelSpec& spec, const DeviceWeights& weights)
      : spec_(&spec), weights_(&weights) {}
  absl::Status make_laws(kernels::Stream& stream);
  int place_of(int index) const;
  int best_rows() const { return first_law_ - first_best_; }

  const ModelSpec* spec_;
  const DeviceWeights* weights_;
  // Rows lie in the order of their places, by what is wanted of them: all that one op or copy takes
  // lies together.
  kernels::Buffer index_;           // i32 [max_logit_rows]: rows of the step
  kernels::Buffer gathered_;        // f32 [max_logit_rows, hidden]
  kernels::Buffer logits_;          // f32 [max_logit_rows, vocab]
  kernels::Buffer best_;            // i32 [max_logit_rows]: of the rows of kBestToken
  kernels::Buffer argmax_scratch_;  // argmax_scratch_bytes()
  // Of the rows of kLaw.
  kernels::Buffer policies_;                        // PolicyRow [max_logit_rows]
  kernels::Buffer law_counts_;                      // i32 [max_logit_rows]
  kernels::Buffer law_tokens_;                      // i32 [max_logit_rows, kMaxLawTokens]
  kernels::Buffer law_probabilities_;               // f64 [max_logit_rows, kMaxLawTokens]
  kernels::Buffer policy_scratch_;                  // policy_scratch_bytes() of policy_rows_
  int policy_rows_ = 0;                             // that one call takes
  kernels::HostBuffer host_index_, host_policies_;  // on their way
  kernels::HostBuffer host_logits_, host_best_;
  kernels::HostBuffer host_law_counts_, host_law_tokens_, host_law_probabilities_;
  // The step in progress.
  std::vector<int32_t> places_;  // [max_logit_rows], by the index in the batch
  int rows_ = 0;
  int first_best_ = 0;  // places: before it, rows of kLogits
  int first_law_ = 0;
};

}  // namespace brigade::runtime
