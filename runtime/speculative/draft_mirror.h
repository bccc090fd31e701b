// What a draft worker holds of one sequence: the committed text as far as it was told, followed by
// its own guesses. A commit that agrees with the guesses leaves them, and the KV behind them, in
// place; the first that does not cuts the text back to the last common token. Pure state, bounded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace brigade::runtime {

class DraftMirror {
 public:
  // `text`: committed at the time of opening. It may grow to `max_positions`.
  DraftMirror(std::span<const int32_t> text, int max_positions, int max_run_ahead);

  struct Commit {
    int kept = 0;           // leading positions whose tokens, and so whose KV, are still right
    bool survived = false;  // no guess was wrong
  };
  // `base_length`: the committed length before `tokens`. FAILED_PRECONDITION when it is not the one
  // known here, RESOURCE_EXHAUSTED when the text would outgrow max_positions; nothing is changed
  // then and the sequence must be opened again.
  absl::Status commit(int base_length, std::span<const int32_t> tokens, Commit* result);

  // Guesses that may still be added.
  int room() const;
  void add_guess(int32_t token);

  std::span<const int32_t> text() const { return text_; }
  int committed_length() const { return committed_; }
  int guesses() const { return static_cast<int>(text_.size()) - committed_; }
  // Of the text before `position`: a chunk's prefix hash.
  uint64_t hash_before(int position) const { return hashes_[static_cast<size_t>(position)]; }

 private:
  void push(int32_t token);

  const int max_positions_;
  const int max_run_ahead_;
  int committed_ = 0;
  std::vector<int32_t> text_;
  std::vector<uint64_t> hashes_;  // [text + 1]
};

}  // namespace brigade::runtime
