#include "tests/support/scripted_drafter.h"

#include "runtime/sampling/random.h"

namespace brigade::tests {

ScriptedDrafter::ScriptedDrafter(DraftScript script, std::vector<int32_t> truth, int vocab,
                                 double right, uint64_t seed)
    : script_(script), truth_(std::move(truth)), vocab_(vocab), right_(right), seed_(seed) {}

// A function of the position alone, so that asking twice gives the same draft.
int32_t ScriptedDrafter::token_at(size_t position) const {
  const auto chance = [&](uint32_t use) {
    return runtime::uniform({.seed = seed_}, static_cast<uint32_t>(position),
                            runtime::RandomPurpose::kDraft, use);
  };
  const int32_t right = truth_[position];
  const auto wrong =
      static_cast<int32_t>((right + 1 + static_cast<int>(chance(1) * (vocab_ - 1))) % vocab_);
  switch (script_) {
    case DraftScript::kRight:
      return right;
    case DraftScript::kWrong:
      return wrong;
    case DraftScript::kSometimes:
      return chance(0) < right_ ? right : wrong;
    case DraftScript::kHostile:
      if (chance(0) < 0.5) return right;
      if (chance(0) < 0.9) return wrong;
      return static_cast<int32_t>((chance(2) - 0.5) * 4e9);
  }
  return right;
}

void ScriptedDrafter::draft(std::span<const int32_t> text, int wanted, runtime::DraftList* drafts) {
  drafts->clear();
  if (script_ == DraftScript::kHostile) wanted += static_cast<int>(text.size() % 5) - 2;
  for (int i = 0; i < wanted && text.size() + static_cast<size_t>(i) < truth_.size(); ++i) {
    drafts->push(token_at(text.size() + static_cast<size_t>(i)));
  }
}

void ScriptedDrafter::run_ahead(std::span<const int32_t> text, runtime::DraftList* drafts) {
  const size_t position = text.size() + static_cast<size_t>(drafts->size());
  if (position < truth_.size()) drafts->push(token_at(position));
}

}  // namespace brigade::tests
