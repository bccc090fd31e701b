#include "runtime/speculative/prompt_lookup.h"

#include <algorithm>
#include <bit>

#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

constexpr uint64_t kProbes = 8;

}  // namespace

PromptLookup::PromptLookup(const PromptLookupOptions& options) : options_(options) {
  CHECK(options.min_match >= 1 && options.max_match >= options.min_match);
  const auto wanted = static_cast<uint32_t>(std::max(2 * options.max_positions, 2));
  slots_per_length_ = std::min(
      std::bit_ceil(wanted), std::bit_floor(static_cast<uint32_t>(std::max(options.max_slots, 1))));
  const auto lengths = static_cast<size_t>(options.max_match - options.min_match + 1);
  slots_.assign(lengths * slots_per_length_, -1);
}

// The slot that names an earlier place of `ngram`, else an empty one, else the one to overwrite.
int32_t& PromptLookup::slot_of(std::span<const int32_t> text, std::span<const int32_t> ngram) {
  uint64_t hash = 0x9E3779B97F4A7C15u;
  for (const int32_t token : ngram) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0xBF58476D1CE4E5B9u;
    hash ^= hash >> 31;
  }
  const size_t first = (ngram.size() - static_cast<size_t>(options_.min_match)) * slots_per_length_;
  for (uint64_t probe = 0; probe < kProbes; ++probe) {
    int32_t& slot = slots_[first + ((hash + probe) & (slots_per_length_ - 1))];
    if (slot < 0) return slot;
    const auto end = static_cast<size_t>(slot);
    const auto there = text.subspan(end - ngram.size(), ngram.size());
    if (std::equal(ngram.begin(), ngram.end(), there.begin())) return slot;
  }
  return slots_[first + (hash & (slots_per_length_ - 1))];
}

// Only n-grams that something follows.
void PromptLookup::index(std::span<const int32_t> text) {
  const int end = static_cast<int>(text.size());
  CHECK(end >= indexed_);
  for (int at = indexed_ + 1; at < end; ++at) {
    const int longest = std::min(options_.max_match, at);
    for (int n = options_.min_match; n <= longest; ++n) {
      slot_of(text, text.subspan(static_cast<size_t>(at - n), static_cast<size_t>(n))) = at;
    }
    indexed_ = at;
  }
}

// Where the text goes on after the best match of its last tokens; -1 without one.
int PromptLookup::find(std::span<const int32_t> text) {
  const int longest = std::min(options_.max_match, static_cast<int>(text.size()));
  for (int n = longest; n >= options_.min_match; --n) {
    const auto ngram = text.last(static_cast<size_t>(n));
    const int at = slot_of(text, ngram);
    if (at < 0) continue;
    const auto there = text.subspan(static_cast<size_t>(at - n), static_cast<size_t>(n));
    if (std::equal(ngram.begin(), ngram.end(), there.begin())) return at;
  }
  return -1;
}

void PromptLookup::draft(std::span<const int32_t> text, int wanted, DraftList* drafts) {
  drafts->clear();
  index(text);
  const int start = find(text);
  if (start < 0) return;
  // Past the end of the text the copy goes on with itself: a text that repeats goes on repeating.
  for (int i = 0; i < wanted; ++i) {
    const auto from = static_cast<size_t>(start + i);
    const int32_t token =
        from < text.size() ? text[from] : drafts->tokens()[from - text.size()].token;
    if (!drafts->push(token, LawForm::kPointMass)) return;
  }
}

}  // namespace brigade::runtime
