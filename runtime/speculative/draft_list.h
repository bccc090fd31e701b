// A bounded list of drafted tokens with their laws: what a drafter fills and the step thread
// verifies. All memory is planned at construction. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/speculative/draft_law.h"

namespace brigade::runtime {

class DraftList {
 public:
  // `max_law_entries`: of one token's sparse law.
  DraftList(int vocab, int max_tokens, int max_law_entries = 0);
  // The tokens point into the list.
  DraftList(const DraftList&) = delete;
  DraftList& operator=(const DraftList&) = delete;

  void clear();
  // False, and the same for every later push until clear(), when the list is full, the id is
  // outside the vocabulary or the law is longer than planned: what follows a missing token is no
  // draft.
  bool push(int32_t token, LawForm form = LawForm::kPointMass,
            DraftMade made = DraftMade::kAfterVerdict);
  bool push_sparse(int32_t token, std::span<const int32_t> law_tokens,
                   std::span<const double> law_probabilities,
                   DraftMade made = DraftMade::kAfterVerdict);

  std::span<const DraftedToken> tokens() const { return tokens_; }
  int size() const { return static_cast<int>(tokens_.size()); }
  // Drafts a whole list could hold.
  int capacity() const { return max_tokens_; }

 private:
  const int vocab_;
  const int max_tokens_;
  const int max_law_entries_;
  bool closed_ = false;
  std::vector<DraftedToken> tokens_;
  std::vector<int32_t> law_tokens_;        // [max_tokens, max_law_entries]
  std::vector<double> law_probabilities_;  // same
};

}  // namespace brigade::runtime
