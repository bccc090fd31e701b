// A drafter without a model (prompt lookup decoding, Saxena 2023): finds the latest earlier place
// where the text's last tokens stood and copies what followed there. The longest match wins. The
// index grows with the text: constant work a token and a draft, memory fixed at construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/speculative/drafter.h"

namespace brigade::runtime {

struct PromptLookupOptions {
  int min_match = 2;  // tokens that must agree
  int max_match = 4;
  int max_positions = 4096;  // of the text
  int max_slots =
      1 << 15;  // of the index, for each match length; later places overwrite earlier ones
};

class PromptLookup final : public Drafter {
 public:
  explicit PromptLookup(const PromptLookupOptions& options);

  void draft(std::span<const int32_t> text, int wanted, DraftList* drafts) override;

 private:
  int32_t& slot_of(std::span<const int32_t> text, std::span<const int32_t> ngram);
  void index(std::span<const int32_t> text);
  int find(std::span<const int32_t> text);

  const PromptLookupOptions options_;
  uint32_t slots_per_length_ = 0;  // a power of two
  std::vector<int32_t> slots_;     // [match lengths, slots]: where the latest such n-gram ended; -1
  int indexed_ = 0;                // n-grams that end at or before here are in the index
};

}  // namespace brigade::runtime
