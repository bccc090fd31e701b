// A StepModel whose logits are a pure function of a sequence's tokens, so that tests know every
// answer in advance, and which watches KV discipline through a ShadowKv shared by all microbatches.
// Faults (NaN, errors, waiting, a frozen step, rows that lack an expert) are injected by its
// options. The step thread drives it; `faults` may be changed from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/model/step_model.h"
#include "runtime/sampling/policy.h"
#include "tests/support/shadow_kv.h"

namespace brigade::tests {

// Shared by the microbatches of one engine.
struct ScriptedWorld {
  ScriptedWorld(int num_blocks, int block_size)
      : kv(num_blocks, block_size), block_size(block_size) {}
  ShadowKv kv;
  const int block_size;
  // From any thread:
  std::atomic<int> nan_token{-1};       // a context with this token gives NaN logits
  std::atomic<int> infinity_token{-1};  // ... +Inf in one place
  std::atomic<int> error_token{-1};     // a step with this token in it fails
  std::atomic<int> waits{0};            // kWaiting answers per step before kDone
  std::atomic<bool> frozen{false};      // advance() says kWaiting and wakes nobody
  std::atomic<int> park_percent{0};     // chance of a row to lack an expert, by park_seed
  std::atomic<uint64_t> park_seed{0};
  std::atomic<int> park_token{-1};  // a row of this token lacks one
  // Another cluster_version() of the models, and a wake; while the engine lives.
  void change_cluster();
  // Written by the step thread:
  std::atomic<int64_t> steps{0}, rows{0}, largest_step{0}, copies{0}, lone_nan_steps{0};
  std::atomic<int64_t> parked_rows{0}, fully_parked_steps{0}, partly_parked_steps{0};
  std::atomic<int64_t> rows_of_logits{0}, rows_of_best_token{0}, rows_of_law{0};
  std::atomic<int64_t> steps_of_all{0};  // with rows of each of these three
  std::atomic<uint64_t> cluster_version{0};
  std::atomic<kernels::Waker*> waker{nullptr};
  // First breach of KV discipline; empty when there was none.
  std::string problem() const;
  void report(const std::string& problem);

 private:
  mutable std::mutex mutex_;
  std::string problem_;
};

// Logits of the token after a prefix: distinct, in [0, 8).
void scripted_logits(uint64_t prefix, std::span<float> logits);
// The most likely token after `tokens`.
int32_t scripted_argmax(std::span<const int32_t> tokens, int vocab);

class ScriptedModel : public runtime::StepModel {
 public:
  ScriptedModel(ScriptedWorld* world, int vocab, const runtime::StepLimits& limits);

  int vocab() const override { return vocab_; }
  const runtime::StepLimits& limits() const override { return limits_; }
  absl::Status begin(const runtime::StepBatch& batch, kernels::Waker* waker) override;
  absl::StatusOr<Progress> advance() override;
  // Reports a problem when the other one was asked for.
  std::span<const float> logits(int index) const override;
  runtime::RowLaw law(int index) const override;
  std::span<const int32_t> parked_rows() const override { return parked_; }
  uint64_t cluster_version() const override { return world_->cluster_version; }
  absl::Status copy_block(int from, int to) override;
  std::vector<std::vector<int64_t>> expert_rows() const override { return {}; }

 private:
  void run();
  uint64_t run_row(int row, std::string* problem);
  void spoil(int row, std::span<float> out);
  std::span<const float> row_of(int index) const;
  bool park(int row);
  void make_laws();
  std::span<const int32_t> table_of(int row) const;
  void check_shape() const;

  ScriptedWorld* const world_;
  const int vocab_;
  const runtime::StepLimits limits_;
  const runtime::StepBatch* batch_ = nullptr;
  kernels::Waker* waker_ = nullptr;
  int waits_left_ = 0;
  std::vector<float> logits_;
  std::vector<runtime::RowOutput> outputs_;  // [logit_rows]
  runtime::Policy policy_;
  std::vector<runtime::Distribution> laws_;  // [max_logit_rows], of rows without logits
  std::vector<int32_t> parked_;
};

}  // namespace brigade::tests
