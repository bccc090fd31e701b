// One microbatch's forward pass as a state machine: segment after segment of ops (StepSegments),
// the experts between them, then final norm and output matrix for the rows whose logits are wanted
// (StepOutput). advance() enqueues work until it needs something from the device or the exchange,
// and never waits for it; on a device that records graphs a segment is often one launch
// (StepGraphs). Owns its stream and buffers, all planned at start. Step thread only.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "expert_parallel/exchange/exchange.h"
#include "kernels/core/device.h"
#include "runtime/model/kv_cache.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/step_buffers.h"
#include "runtime/model/step_graphs.h"
#include "runtime/model/step_model.h"
#include "runtime/model/step_output.h"
#include "runtime/model/step_segments.h"
#include "runtime/model/weights.h"

namespace brigade::runtime {

class ForwardPass : public StepModel {
 public:
  // `exchange` may be null for a model without MoE layers. All else must outlive the pass.
  static absl::StatusOr<std::unique_ptr<ForwardPass>> create(
      kernels::Device& device, const ModelSpec& spec, const DeviceWeights& weights,
      const KvCache& kv, std::unique_ptr<expert_parallel::Exchange> exchange,
      const StepLimits& limits, const StepGraphOptions& graphs);
  ~ForwardPass() override;

  int vocab() const override { return spec_.vocab; }
  const StepLimits& limits() const override { return limits_; }
  absl::Status begin(const StepBatch& batch, kernels::Waker* waker) override;
  absl::StatusOr<Progress> advance() override;
  std::span<const float> logits(int index) const override;
  RowLaw law(int index) const override;
  std::span<const int32_t> parked_rows() const override { return parked_rows_; }
  uint64_t cluster_version() const override;
  uint64_t exchange_under_way() const override {
    return stage_ == Stage::kExperts ? exchanges_ : 0;
  }
  absl::Status copy_block(int from, int to) override;
  std::vector<std::vector<int64_t>> expert_rows() const override { return use_.rows(); }
  const ExpertUse* expert_use() const override { return use_.layers() == 0 ? nullptr : &use_; }
  StepGraphCounts graph_counts() const override {
    return graphs_ ? graphs_->counts() : StepGraphCounts();
  }

 private:
  enum class Stage { kIdle, kSegment, kRouted, kExperts, kFinishing };

  ForwardPass(const ModelSpec& spec, const DeviceWeights& weights, const KvCache& kv,
              std::unique_ptr<expert_parallel::Exchange> exchange, const StepLimits& limits);
  absl::StatusOr<bool> step();
  absl::Status run_segment();
  absl::StatusOr<bool> start_experts();
  absl::StatusOr<bool> finish_experts();
  absl::Status check_experts(int layer) const;
  void park(std::span<const int32_t> rows);
  absl::Status finish();
  void count_experts();
  void follow_holders();

  const ModelSpec& spec_;
  const DeviceWeights& weights_;
  const KvCache& kv_;
  const StepLimits limits_;
  std::unique_ptr<kernels::Stream> stream_;
  const std::unique_ptr<expert_parallel::Exchange> exchange_;  // ends before the stream it uses
  StepBuffers buffers_;
  StepSegments segments_;
  std::optional<StepOutput> output_;  // set by create()
  std::optional<StepGraphs> graphs_;  // none: all is enqueued op by op
  ExpertUse use_;
  uint64_t holders_version_ = 0;  // of use_'s holders

  uint64_t exchanges_ = 0;  // begun since start

  // The step in progress.
  Stage stage_ = Stage::kIdle;
  const StepBatch* batch_ = nullptr;
  kernels::Waker* waker_ = nullptr;
  kernels::Event event_;
  StepShape shape_;
  int segment_ = 0;
  ExpertAnswers answers_;  // to the layer routed by the segment before
  // Rows whose hidden state is garbage because an expert had no holder. They go on through the
  // layers as NaN: every op keeps rows apart, and the router stays in range.
  std::vector<int32_t> first_parked_;  // [max_sequences]: from this row on; max_rows: none
  std::vector<int32_t> parked_rows_;   // ascending
};

}  // namespace brigade::runtime
