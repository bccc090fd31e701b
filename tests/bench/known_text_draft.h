// A draft model of a given acceptance at its real cost: computes as the model it wraps does, then
// answers with what is known to come next, right for a given share of positions and wrong for the
// others. Texts that it does not know keep the model's own logits. Draft thread; texts are learnt
// before it runs.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/model/step_model.h"

namespace brigade::bench {

class KnownTextDraft final : public runtime::StepModel {
 public:
  // `model` outlives this.
  KnownTextDraft(runtime::StepModel& model, const runtime::KvGeometry& kv, double acceptance);

  // Whatever begins as `text` goes on as `text`.
  void learn(std::span<const int32_t> text);

  int vocab() const override { return model_.vocab(); }
  const runtime::StepLimits& limits() const override { return model_.limits(); }
  absl::Status begin(const runtime::StepBatch& batch, kernels::Waker* waker) override;
  absl::StatusOr<Progress> advance() override;
  std::span<const float> logits(int index) const override;
  runtime::RowLaw law(int index) const override;
  absl::Status copy_block(int from, int to) override;
  std::vector<std::vector<int64_t>> expert_rows() const override { return {}; }

 private:
  uint64_t text_before(int row) const;
  int32_t known_token(int row) const;
  void answer(int index, int row);

  runtime::StepModel& model_;
  const int block_size_;
  const double acceptance_;
  std::unordered_map<uint64_t, int32_t> next_;  // by the hash of the text before
  std::vector<int32_t> tokens_;                 // by KV slot
  const runtime::StepBatch* batch_ = nullptr;
  // By index: a row of logits or, where something else was asked for, the known token.
  std::vector<std::vector<float>> logits_;
  std::vector<int32_t> known_;
};

}  // namespace brigade::bench
