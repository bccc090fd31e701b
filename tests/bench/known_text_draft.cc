#include "tests/bench/known_text_draft.h"

#include <algorithm>

#include "kernels/ops/sampling_args.h"
#include "runtime/speculative/text_hash.h"

namespace brigade::bench {

KnownTextDraft::KnownTextDraft(runtime::StepModel& model, const runtime::KvGeometry& kv,
                               double acceptance)
    : model_(model),
      block_size_(kv.block_size),
      acceptance_(acceptance),
      tokens_(static_cast<size_t>(kv.num_blocks) * static_cast<size_t>(kv.block_size)),
      logits_(static_cast<size_t>(model.limits().max_logit_rows)),
      known_(logits_.size(), kernels::kNoToken) {}

void KnownTextDraft::learn(std::span<const int32_t> text) {
  uint64_t hash = runtime::kEmptyTextHash;
  for (const int32_t token : text) {
    next_[hash] = token;
    hash = runtime::extend_text_hash(hash, token);
  }
}

absl::Status KnownTextDraft::begin(const runtime::StepBatch& batch, kernels::Waker* waker) {
  batch_ = &batch;
  for (size_t row = 0; row < batch.tokens.size(); ++row) {
    tokens_[static_cast<size_t>(batch.slots[row])] = batch.tokens[row];
  }
  return model_.begin(batch, waker);
}

absl::StatusOr<runtime::StepModel::Progress> KnownTextDraft::advance() {
  auto progress = model_.advance();
  if (!progress.ok() || *progress != Progress::kDone) return progress;
  for (size_t i = 0; i < batch_->logit_rows.size(); ++i) {
    answer(static_cast<int>(i), batch_->logit_rows[i]);
  }
  return progress;
}

absl::Status KnownTextDraft::copy_block(int from, int to) {
  const auto at = [&](int block) { return tokens_.begin() + std::ptrdiff_t{block} * block_size_; };
  std::copy_n(at(from), block_size_, at(to));
  return model_.copy_block(from, to);
}

// Up to and with the row's own token.
uint64_t KnownTextDraft::text_before(int row) const {
  const auto sequence = static_cast<size_t>(batch_->row_sequence[static_cast<size_t>(row)]);
  const int32_t* blocks =
      batch_->block_tables.data() + sequence * static_cast<size_t>(batch_->max_blocks);
  uint64_t hash = runtime::kEmptyTextHash;
  for (int position = 0; position <= batch_->positions[static_cast<size_t>(row)]; ++position) {
    const int slot = blocks[position / block_size_] * block_size_ + position % block_size_;
    hash = runtime::extend_text_hash(hash, tokens_[static_cast<size_t>(slot)]);
  }
  return hash;
}

// kNoToken: the text is not known.
int32_t KnownTextDraft::known_token(int row) const {
  const uint64_t text = text_before(row);
  const auto known = next_.find(text);
  if (known == next_.end()) return kernels::kNoToken;
  const double chance = static_cast<double>(runtime::extend_text_hash(text, 1) >> 11) * 0x1p-53;
  return chance < acceptance_ ? known->second : (known->second + 1) % model_.vocab();
}

void KnownTextDraft::answer(int index, int row) {
  const auto at = static_cast<size_t>(index);
  const int32_t token = known_token(row);
  known_[at] = token;
  if (batch_->output(index) != runtime::RowOutput::kLogits) return;
  const std::span<const float> own = model_.logits(index);
  std::vector<float>& logits = logits_[at];
  logits.assign(own.begin(), own.end());
  if (token == kernels::kNoToken) return;
  std::fill(logits.begin(), logits.end(), 0.0f);
  logits[static_cast<size_t>(token)] = 10;
}

std::span<const float> KnownTextDraft::logits(int index) const {
  return logits_[static_cast<size_t>(index)];
}

runtime::RowLaw KnownTextDraft::law(int index) const {
  static constexpr double kCertain = 1;
  const int32_t& token = known_[static_cast<size_t>(index)];
  if (token == kernels::kNoToken) return model_.law(index);
  return {.tokens = {&token, 1}, .probabilities = {&kCertain, 1}};
}

}  // namespace brigade::bench
