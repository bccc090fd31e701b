#include "tests/runtime/draft_worker/draft_engine_bed.h"

#include <gtest/gtest.h>

#include "runtime/speculative/text_hash.h"

namespace brigade::tests {

using runtime::AcceptRule;
using runtime::LawForm;

namespace {

runtime::StepLimits limits_of(const BedOptions& options) {
  return {.max_rows = options.max_rows,
          .max_sequences = options.max_sequences,
          .max_blocks = (options.max_context + options.block_size - 1) / options.block_size,
          .max_logit_rows = options.max_sequences};
}

uint64_t hash_of(std::span<const int32_t> text) {
  uint64_t hash = runtime::kEmptyTextHash;
  for (const int32_t token : text) hash = runtime::extend_text_hash(hash, token);
  return hash;
}

}  // namespace

void WorkerView::commit(const runtime::CommitDraft& commit) {
  size_t common = 0;
  while (common < commit.tokens.size() && committed + common < text.size() &&
         text[committed + common] == commit.tokens[common]) {
    ++common;
  }
  if (common < commit.tokens.size()) text.resize(committed + common);
  text.insert(text.end(), commit.tokens.begin() + static_cast<std::ptrdiff_t>(common),
              commit.tokens.end());
  committed += commit.tokens.size();
}

DraftEngineBed::DraftEngineBed(const BedOptions& options)
    : options(options),
      world(options.blocks, options.block_size),
      model(&world, options.vocab, limits_of(options)),
      engine(model, {.block_size = options.block_size, .num_blocks = options.blocks},
             {.limits = {.vocab = options.vocab, .max_context = options.max_context},
              .max_sequences = options.max_sequences},
             *this) {}

void DraftEngineBed::open(const runtime::OpenDraft& open) {
  views[open.sequence] = {open, open.tokens, open.tokens.size()};
  engine.take(open);
}

void DraftEngineBed::commit(uint64_t sequence, const std::vector<int32_t>& tokens, int wanted) {
  WorkerView& view = views.at(sequence);
  const runtime::CommitDraft commit{.sequence = sequence,
                                    .epoch = view.open.epoch,
                                    .base_length = static_cast<int>(view.committed),
                                    .tokens = tokens,
                                    .wanted = wanted};
  view.commit(commit);
  view.open.wanted = wanted;
  engine.take(commit);
}

void DraftEngineBed::close(uint64_t sequence) {
  engine.take(runtime::CloseDraft{.sequence = sequence, .epoch = views.at(sequence).open.epoch});
  views.erase(sequence);
}

void DraftEngineBed::run() {
  for (int step = 0; engine.has_work(); ++step) {
    ASSERT_LT(step, 10000) << "the engine never comes to rest";
    const absl::Status status = engine.step();
    ASSERT_TRUE(status.ok()) << status;
  }
  ASSERT_EQ(world.problem(), "");
}

std::optional<int32_t> DraftEngineBed::expected(const runtime::OpenDraft& open,
                                                std::span<const int32_t> text) {
  std::vector<float> logits(static_cast<size_t>(options.vocab));
  scripted_logits(hash_prefix(text), logits);
  const auto prompt = static_cast<size_t>(open.prompt_length);
  runtime::TokenCounts counts(text.first(prompt));
  for (const int32_t token : text.subspan(prompt)) counts.add_output(token);
  runtime::PolicyInput input{.params = &open.sampling, .counts = &counts};
  if (static_cast<int>(text.size()) - open.prompt_length < open.min_tokens) {
    input.forbidden_now = open.end_tokens;
  }
  runtime::Policy policy(options.vocab);
  runtime::Distribution distribution;
  if (!policy.distribution(logits, input, &distribution)) return std::nullopt;
  const runtime::RandomKey key{open.sampling.seed, static_cast<uint32_t>(open.sample_index)};
  const auto position = static_cast<uint32_t>(text.size());
  if (open.rule != AcceptRule::kRejection) return runtime::draw(distribution, key, position);
  std::vector<int32_t> tokens;
  std::vector<float> weights;
  runtime::sparse_weights(distribution, open.law_entries, &tokens, &weights);
  runtime::Distribution law;
  EXPECT_TRUE(runtime::law_from_weights(tokens, weights, options.vocab, &law).ok());
  return runtime::draw(law, key, position, runtime::RandomPurpose::kDraft);
}

void DraftEngineBed::drafted(const runtime::ChunkMessage& chunk) {
  ASSERT_TRUE(views.contains(chunk.sequence));
  WorkerView& view = views.at(chunk.sequence);
  ASSERT_EQ(chunk.epoch, view.open.epoch);
  ASSERT_EQ(chunk.base_length, static_cast<int>(view.committed));
  ASSERT_EQ(chunk.position, static_cast<int>(view.text.size()));
  ASSERT_EQ(chunk.prefix_hash, hash_of(view.text));
  ASSERT_EQ(chunk.tokens.size(), 1u);
  ASSERT_EQ(chunk.margins.size(), 1u);
  ASSERT_EQ(chunk.form,
            view.open.rule == AcceptRule::kRejection ? LawForm::kSparse : LawForm::kNone);
  ASSERT_EQ(chunk.tokens[0], expected(view.open, view.text));
  view.text.push_back(chunk.tokens[0]);
  const auto guesses = view.text.size() - view.committed;
  ASSERT_LE(guesses, static_cast<size_t>(view.open.wanted)) << "beyond its credit";
  ASSERT_LE(view.text.size(), static_cast<size_t>(view.open.max_length));
  chunks.push_back(chunk);
}

runtime::OpenDraft greedy_open(uint64_t sequence, std::vector<int32_t> tokens, int wanted) {
  runtime::OpenDraft open{.sequence = sequence, .epoch = sequence, .wanted = wanted};
  open.tokens = std::move(tokens);
  open.prompt_length = static_cast<int>(open.tokens.size());
  open.max_length = 64;
  return open;
}

}  // namespace brigade::tests
