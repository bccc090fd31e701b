#include "tests/support/scripted_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"

namespace brigade::tests {

using runtime::RowOutput;

std::string ScriptedWorld::problem() const {
  std::lock_guard lock(mutex_);
  return problem_;
}

void ScriptedWorld::report(const std::string& problem) {
  std::lock_guard lock(mutex_);
  if (problem_.empty()) problem_ = problem;
}

void ScriptedWorld::change_cluster() {
  ++cluster_version;
  if (kernels::Waker* sleeper = waker) sleeper->wake();
}

void scripted_logits(uint64_t prefix, std::span<float> logits) {
  for (size_t token = 0; token < logits.size(); ++token) {
    const uint64_t bits = extend_prefix(prefix ^ 0x5851f42d4c957f2du, static_cast<int32_t>(token));
    logits[token] = static_cast<float>(bits >> 44) * 0x1p-17f;
  }
}

int32_t scripted_argmax(std::span<const int32_t> tokens, int vocab) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  scripted_logits(hash_prefix(tokens), logits);
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

ScriptedModel::ScriptedModel(ScriptedWorld* world, int vocab, const runtime::StepLimits& limits)
    : world_(world),
      vocab_(vocab),
      limits_(limits),
      logits_(static_cast<size_t>(limits.max_logit_rows) * vocab),
      policy_(vocab),
      laws_(static_cast<size_t>(limits.max_logit_rows)) {
  parked_.reserve(static_cast<size_t>(limits.max_rows));
  outputs_.reserve(static_cast<size_t>(limits.max_logit_rows));
  for (runtime::Distribution& law : laws_) {
    law.tokens.reserve(static_cast<size_t>(vocab));
    law.probabilities.reserve(static_cast<size_t>(vocab));
  }
}

absl::Status ScriptedModel::begin(const runtime::StepBatch& batch, kernels::Waker* waker) {
  if (batch_ != nullptr) world_->report("begin() while a step is running");
  batch_ = &batch;
  waker_ = waker;
  world_->waker = waker;
  parked_.clear();
  waits_left_ = world_->waits;
  check_shape();
  const int error_token = world_->error_token;
  if (std::find(batch.tokens.begin(), batch.tokens.end(), error_token) != batch.tokens.end()) {
    batch_ = nullptr;
    return absl::InternalError(absl::StrCat("scripted failure at token ", error_token));
  }
  return absl::OkStatus();
}

void ScriptedModel::check_shape() const {
  const runtime::StepBatch& batch = *batch_;
  const size_t rows = batch.tokens.size();
  const bool fits = rows > 0 && batch.rows() <= limits_.max_rows &&
                    batch.sequences <= limits_.max_sequences &&
                    batch.max_blocks <= limits_.max_blocks &&
                    batch.logit_rows.size() <= static_cast<size_t>(limits_.max_logit_rows);
  const bool agrees = batch.positions.size() == rows && batch.row_sequence.size() == rows &&
                      batch.slots.size() == rows &&
                      batch.block_tables.size() == static_cast<size_t>(batch.sequences) *
                                                       static_cast<size_t>(batch.max_blocks);
  if (!fits) world_->report("a step is larger than the limits");
  if (!agrees) world_->report("the arrays of a step disagree in length");
  if (!batch.outputs.empty() && batch.outputs.size() != batch.logit_rows.size()) {
    world_->report("outputs and logit_rows disagree in length");
  }
  if (!std::is_sorted(batch.logit_rows.begin(), batch.logit_rows.end())) {
    world_->report("logit_rows do not ascend");
  }
}

absl::StatusOr<runtime::StepModel::Progress> ScriptedModel::advance() {
  if (batch_ == nullptr) return absl::InternalError("advance() without begin()");
  if (world_->frozen) return Progress::kWaiting;
  if (waits_left_ > 0) {
    --waits_left_;
    if (waker_ != nullptr) waker_->wake();
    return Progress::kWaiting;
  }
  run();
  batch_ = nullptr;
  return Progress::kDone;
}

void ScriptedModel::run() {
  size_t wanted = 0;
  std::string problem;
  for (int row = 0; row < batch_->rows(); ++row) {
    // What comes out of a parked row looks sound and is wrong, so that whoever uses it is caught.
    const bool parked = park(row);
    const uint64_t prefix = parked ? kEmptyPrefix : run_row(row, &problem);
    if (wanted == batch_->logit_rows.size() || batch_->logit_rows[wanted] != row) continue;
    const std::span<float> out(logits_.data() + wanted * static_cast<size_t>(vocab_),
                               static_cast<size_t>(vocab_));
    ++wanted;
    scripted_logits(prefix, out);
    if (parked && world_->steps % 2 == 1) out[0] = std::numeric_limits<float>::quiet_NaN();
    if (!parked) spoil(row, out);
  }
  if (!problem.empty()) world_->report(problem);
  make_laws();
  if (!parked_.empty()) {
    const bool all = parked_.size() == batch_->tokens.size();
    ++(all ? world_->fully_parked_steps : world_->partly_parked_steps);
  }
  world_->parked_rows += static_cast<int64_t>(parked_.size());
  ++world_->steps;
  world_->rows += batch_->rows();
  world_->largest_step = std::max<int64_t>(world_->largest_step, batch_->sequences);
}

// Also counts what was asked for.
void ScriptedModel::make_laws() {
  outputs_.assign(batch_->outputs.begin(), batch_->outputs.end());
  outputs_.resize(batch_->logit_rows.size(), RowOutput::kLogits);
  int64_t of[3] = {};
  auto asked = batch_->policies.begin();
  for (size_t i = 0; i < outputs_.size(); ++i) {
    ++of[static_cast<size_t>(outputs_[i])];
    if (outputs_[i] == RowOutput::kLogits) continue;
    runtime::SamplingParams params;  // greedy
    if (outputs_[i] == RowOutput::kLaw) {
      params.temperature = asked->temperature;
      params.top_k = asked->top_k;
      params.top_p = asked->top_p;
      params.min_p = asked->min_p;
      ++asked;
    }
    const runtime::PolicyInput input{.params = &params, .counts = nullptr, .forbidden_now = {}};
    if (!policy_.distribution(row_of(static_cast<int>(i)), input, &laws_[i])) {
      laws_[i].tokens.clear();
      laws_[i].probabilities.clear();
    }
  }
  world_->rows_of_logits += of[static_cast<size_t>(RowOutput::kLogits)];
  world_->rows_of_best_token += of[static_cast<size_t>(RowOutput::kBestToken)];
  world_->rows_of_law += of[static_cast<size_t>(RowOutput::kLaw)];
  if (std::all_of(std::begin(of), std::end(of), [](int64_t rows) { return rows > 0; })) {
    ++world_->steps_of_all;
  }
}

// True for rows that lack an expert and those that follow them in their sequence.
bool ScriptedModel::park(int row) {
  const size_t at = static_cast<size_t>(row);
  const auto same_sequence = [&](int32_t parked) {
    return batch_->row_sequence[static_cast<size_t>(parked)] == batch_->row_sequence[at];
  };
  if (!std::any_of(parked_.begin(), parked_.end(), same_sequence)) {
    const uint64_t drawn =
        extend_prefix(extend_prefix(world_->park_seed, static_cast<int32_t>(world_->steps)), row);
    const bool lacks = drawn % 100 < static_cast<uint64_t>(world_->park_percent) ||
                       batch_->tokens[at] == world_->park_token;
    if (!lacks) return false;
  }
  parked_.push_back(row);
  world_->kv.poison_slot(batch_->slots[at]);
  return true;
}

// NaN or Inf when the context holds the token that brings it.
void ScriptedModel::spoil(int row, std::span<float> out) {
  const size_t at = static_cast<size_t>(row);
  const int position = batch_->positions[at];
  if (world_->kv.holds(table_of(row), position, world_->nan_token)) {
    std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
    if (batch_->rows() == 1) ++world_->lone_nan_steps;
  }
  if (world_->kv.holds(table_of(row), position, world_->infinity_token)) {
    out[out.size() / 2] = std::numeric_limits<float>::infinity();
  }
}

std::span<const int32_t> ScriptedModel::table_of(int row) const {
  const size_t blocks = static_cast<size_t>(batch_->max_blocks);
  const size_t sequence = static_cast<size_t>(batch_->row_sequence[static_cast<size_t>(row)]);
  return {batch_->block_tables.data() + sequence * blocks, blocks};
}

uint64_t ScriptedModel::run_row(int row, std::string* problem) {
  const size_t at = static_cast<size_t>(row);
  return world_->kv.write_slot(batch_->slots[at], table_of(row), batch_->positions[at],
                               batch_->tokens[at], problem);
}

std::span<const float> ScriptedModel::row_of(int index) const {
  return {logits_.data() + static_cast<size_t>(index) * static_cast<size_t>(vocab_),
          static_cast<size_t>(vocab_)};
}

std::span<const float> ScriptedModel::logits(int index) const {
  if (outputs_[static_cast<size_t>(index)] != RowOutput::kLogits) {
    world_->report("logits of a row that something else was asked of");
  }
  return row_of(index);
}

runtime::RowLaw ScriptedModel::law(int index) const {
  if (outputs_[static_cast<size_t>(index)] == RowOutput::kLogits) {
    world_->report("the law of a row whose logits were asked for");
  }
  const runtime::Distribution& law = laws_[static_cast<size_t>(index)];
  return {.tokens = law.tokens, .probabilities = law.probabilities};
}

absl::Status ScriptedModel::copy_block(int from, int to) {
  world_->kv.copy_block(from, to);
  ++world_->copies;
  return absl::OkStatus();
}

}  // namespace brigade::tests
