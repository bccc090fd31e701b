#include "runtime/draft_worker/draft_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/speculative/draft_law.h"

namespace brigade::runtime::draft_worker {
namespace {

// How sure the drafter is, at no cost worth naming: the token's logit less the best other one's. 0
// where the logits have stayed on the device.
float margin_of(std::span<const float> logits, int32_t token) {
  if (logits.empty()) return 0;
  float other = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<int32_t>(i) != token) other = std::max(other, logits[i]);
  }
  const float margin = logits[static_cast<size_t>(token)] - other;
  return std::isfinite(margin) ? margin : 0;
}

}  // namespace

DraftEngine::DraftEngine(StepModel& model, const KvGeometry& kv, const DraftEngineOptions& options,
                         DraftSink& sink)
    : model_(model),
      options_(options),
      block_size_(kv.block_size),
      sink_(sink),
      blocks_(kv.num_blocks, kv.block_size),
      policy_(options.limits.vocab) {
  const StepLimits& limits = model.limits();
  CHECK(options.limits.vocab <= model.vocab());
  CHECK(options.max_sequences <= std::min(limits.max_sequences, limits.max_logit_rows));
  CHECK(options.max_sequences <= limits.max_rows);
  CHECK(options.limits.max_context <= limits.max_blocks * kv.block_size);
  const auto vocab = static_cast<size_t>(options.limits.vocab);
  distribution_.tokens.reserve(vocab);
  distribution_.probabilities.reserve(vocab);
  sequences_.reserve(static_cast<size_t>(options.max_sequences));
  ready_.reserve(static_cast<size_t>(options.max_sequences));
  slices_.reserve(static_cast<size_t>(options.max_sequences));
}

DraftEngine::Sequences::iterator DraftEngine::find(uint64_t sequence) {
  return std::find_if(sequences_.begin(), sequences_.end(),
                      [&](const auto& open) { return open->id() == sequence; });
}

void DraftEngine::take(DraftCommand command) {
  ++clock_;
  std::visit([this](auto& message) { on(std::move(message)); }, command);
}

void DraftEngine::on(OpenDraft open) {
  if (const auto place = find(open.sequence); place != sequences_.end()) remove(place);
  const uint64_t sequence = open.sequence;
  const uint64_t epoch = open.epoch;
  if (const absl::Status status = check_open(options_.limits, &open); !status.ok()) {
    return refuse(sequence, epoch, NackReason::kRefused, std::string(status.message()));
  }
  if (open_sequences() >= options_.max_sequences) {
    return refuse(sequence, epoch, NackReason::kFull,
                  absl::StrCat(open_sequences(), " sequences are open"));
  }
  sequences_.push_back(std::make_unique<DraftSequence>(std::move(open), options_.limits, clock_));
}

void DraftEngine::on(const CommitDraft& commit) {
  const auto place = find(commit.sequence);
  if (place == sequences_.end() || (*place)->epoch() != commit.epoch) return;
  const absl::StatusOr<int> undone = (*place)->commit(commit, clock_);
  if (undone.ok()) {
    counters_.undone += *undone;
    return;
  }
  remove(place);
  const bool out_of_step = undone.status().code() == absl::StatusCode::kFailedPrecondition;
  refuse(commit.sequence, commit.epoch, out_of_step ? NackReason::kOutOfStep : NackReason::kRefused,
         std::string(undone.status().message()));
}

void DraftEngine::on(const CloseDraft& close) {
  const auto place = find(close.sequence);
  if (place != sequences_.end() && (*place)->epoch() == close.epoch) remove(place);
}

void DraftEngine::refuse(uint64_t sequence, uint64_t epoch, NackReason reason,
                         const std::string& detail) {
  ++counters_.refused;
  sink_.refused({.sequence = sequence, .epoch = epoch, .reason = reason, .detail = detail});
}

void DraftEngine::remove(Sequences::iterator place) {
  for (const int block : (*place)->blocks) blocks_.release(block);
  sequences_.erase(place);
}

void DraftEngine::clear() {
  while (!sequences_.empty()) remove(std::prev(sequences_.end()));
}

bool DraftEngine::has_work() const {
  return std::any_of(sequences_.begin(), sequences_.end(),
                     [](const auto& sequence) { return sequence->wants_draft(); });
}

// The one that has waited longest for a command; null when every other one has work.
DraftSequence* DraftEngine::idle_longest(const DraftSequence& other) const {
  DraftSequence* oldest = nullptr;
  for (const auto& sequence : sequences_) {
    if (sequence.get() == &other || sequence->wants_draft() || sequence->blocks.empty()) continue;
    if (oldest == nullptr || sequence->touched() < oldest->touched()) oldest = sequence.get();
  }
  return oldest;
}

// Blocks for that many positions, at the cost of idle sequences.
bool DraftEngine::reserve(DraftSequence& sequence, int positions) {
  const auto needed = static_cast<size_t>(blocks_.blocks_for(positions));
  while (sequence.blocks.size() < needed) {
    const int block = blocks_.allocate();
    if (block >= 0) {
      sequence.blocks.push_back(block);
      continue;
    }
    const DraftSequence* victim = idle_longest(sequence);
    if (victim == nullptr) return false;
    const uint64_t id = victim->id();
    const uint64_t epoch = victim->epoch();
    remove(find(id));
    refuse(id, epoch, NackReason::kFull, "its KV went to a sequence with work");
  }
  return true;
}

// Fewest rows first: next drafts are not delayed by a long prompt's rows, which take what is left.
void DraftEngine::plan() {
  ready_.clear();
  for (const auto& sequence : sequences_) {
    if (sequence->wants_draft()) ready_.push_back(sequence.get());
  }
  std::sort(ready_.begin(), ready_.end(), [](const DraftSequence* a, const DraftSequence* b) {
    if (a->pending_rows() != b->pending_rows()) return a->pending_rows() < b->pending_rows();
    return a->id() < b->id();
  });
  slices_.clear();
  int rows = model_.limits().max_rows;
  int indices = 0;
  for (DraftSequence* sequence : ready_) {
    const int pending = sequence->pending_rows();
    CHECK(pending > 0);
    const int count = std::min(pending, rows);
    if (count == 0) break;
    if (!reserve(*sequence, sequence->computed + count)) {
      const uint64_t id = sequence->id();
      const uint64_t epoch = sequence->epoch();
      remove(find(id));
      refuse(id, epoch, NackReason::kFull, "no KV block is free");
      continue;
    }
    slices_.push_back({sequence, count, count == pending ? indices++ : -1});
    rows -= count;
  }
}

void DraftEngine::fill_batch() {
  batch_.tokens.clear();
  batch_.positions.clear();
  batch_.row_sequence.clear();
  batch_.slots.clear();
  batch_.logit_rows.clear();
  batch_.outputs.clear();
  batch_.policies.clear();
  batch_.sequences = static_cast<int>(slices_.size());
  batch_.max_blocks = 0;
  for (const Slice& slice : slices_) {
    const int used = blocks_.blocks_for(slice.sequence->computed + slice.rows);
    batch_.max_blocks = std::max(batch_.max_blocks, used);
  }
  batch_.max_blocks = block_table_width(batch_.max_blocks, model_.limits().max_blocks);
  const auto width = static_cast<size_t>(batch_.max_blocks);
  batch_.block_tables.assign(slices_.size() * width, -1);
  for (size_t i = 0; i < slices_.size(); ++i) {
    const DraftSequence& sequence = *slices_[i].sequence;
    const std::vector<int>& blocks = sequence.blocks;
    std::copy_n(blocks.begin(), std::min(blocks.size(), width),
                batch_.block_tables.begin() + static_cast<std::ptrdiff_t>(i * width));
    for (int row = 0; row < slices_[i].rows; ++row) {
      const int position = sequence.computed + row;
      const int block = blocks[static_cast<size_t>(position / block_size_)];
      batch_.tokens.push_back(sequence.text()[static_cast<size_t>(position)]);
      batch_.positions.push_back(position);
      batch_.row_sequence.push_back(static_cast<int32_t>(i));
      batch_.slots.push_back(int64_t{block} * block_size_ + position % block_size_);
    }
    if (slices_[i].index < 0) continue;
    const PolicyInput input = sequence.policy_input();
    ask_for_row(batch_.rows() - 1, row_output(input), input, &batch_);
  }
}

// The model may have more outputs than the vocabulary has ids: a law may then hold some.
RowOutput DraftEngine::row_output(const PolicyInput& input) const {
  const RowOutput output = sufficient_output(input);
  const bool all_are_tokens = model_.vocab() == options_.limits.vocab;
  return output == RowOutput::kLaw && !all_are_tokens ? RowOutput::kLogits : output;
}

TargetRow DraftEngine::drafter_row(const Slice& slice) const {
  TargetRow row = target_row(model_, batch_, slice.index);
  if (!row.logits.empty()) {
    row.logits = row.logits.first(static_cast<size_t>(options_.limits.vocab));
  }
  return row;
}

absl::Status DraftEngine::run() {
  const absl::Time deadline = absl::Now() + options_.step_deadline;
  RETURN_IF_ERROR(model_.begin(batch_, &waker_));
  while (true) {
    ASSIGN_OR_RETURN(const StepModel::Progress progress, model_.advance());
    if (progress == StepModel::Progress::kDone) return absl::OkStatus();
    const absl::Time now = absl::Now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("a draft step of ", batch_.rows(), " rows did not end in time"));
    }
    // Nobody wakes after an error on a GPU: the model is asked now and then.
    waker_.wait_until(std::min(deadline, now + absl::Seconds(1)));
  }
}

absl::Status DraftEngine::step() {
  plan();
  if (slices_.empty()) return absl::OkStatus();
  fill_batch();
  RETURN_IF_ERROR(run());
  ++counters_.steps;
  counters_.rows += batch_.rows();
  counters_.largest_step = std::max<int64_t>(counters_.largest_step, batch_.sequences);
  for (const Slice& slice : slices_) finish(slice);
  return absl::OkStatus();
}

void DraftEngine::finish(const Slice& slice) {
  DraftSequence& sequence = *slice.sequence;
  sequence.computed += slice.rows;
  if (slice.index < 0) return;
  if (draft(sequence, drafter_row(slice))) return;
  const uint64_t id = sequence.id();
  const uint64_t epoch = sequence.epoch();
  remove(find(id));
  refuse(id, epoch, NackReason::kRefused, "its logits leave no token to draft");
}

// The next guess. False when there is nothing to draw from.
bool DraftEngine::draft(DraftSequence& sequence, const TargetRow& row) {
  if (!target_law(row, sequence.policy_input(), &policy_, &distribution_)) return false;
  const auto position = static_cast<uint32_t>(sequence.length());
  chunk_.law_sizes.clear();
  chunk_.law_tokens.clear();
  chunk_.law_weights.clear();
  chunk_.form = LawForm::kNone;
  int32_t token = 0;
  if (sequence.rule() == AcceptRule::kRejection) {
    // Drawn from the very list that is sent, as the other side will read it.
    sparse_weights(distribution_, sequence.law_entries(), &chunk_.law_tokens, &chunk_.law_weights);
    const absl::Status law =
        law_from_weights(chunk_.law_tokens, chunk_.law_weights, options_.limits.vocab, &law_);
    CHECK(law.ok());
    chunk_.form = LawForm::kSparse;
    chunk_.law_sizes.push_back(static_cast<int>(chunk_.law_tokens.size()));
    token = draw(law_, sequence.key(), position, RandomPurpose::kDraft);
  } else {
    // With the target's own noise: equal whenever both distributions lead to the same token.
    token = draw(distribution_, sequence.key(), position, RandomPurpose::kGumbel);
    // A best output that is no token: any guess is as wrong.
    token = std::min(token, options_.limits.vocab - 1);
  }
  chunk_.sequence = sequence.id();
  chunk_.epoch = sequence.epoch();
  chunk_.base_length = sequence.mirror().committed_length();
  chunk_.prefix_hash = sequence.mirror().hash_before(sequence.length());
  chunk_.position = sequence.length();
  chunk_.tokens.assign(1, token);
  chunk_.margins.assign(1, margin_of(row.logits, token));
  sequence.add_guess(token);
  ++counters_.drafted;
  sink_.drafted(chunk_);
  return true;
}

}  // namespace brigade::runtime::draft_worker
