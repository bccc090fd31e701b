// What has become of drafts, of one sequence or of all: by position in a pass, and how early they
// were made. Plain numbers; whoever owns one counts.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "runtime/speculative/draft_law.h"
#include "runtime/speculative/survival.h"

namespace brigade::runtime {

struct DraftCounts {
  int64_t drafted = 0, accepted = 0;
  std::array<int64_t, kMaxDraftDepth> drafted_at{}, accepted_at{};
  // Of the drafted: made before their worker knew what the pass before had committed; of those:
  // arrived before that pass ended, so that they were certainly made before.
  int64_t run_ahead = 0, early = 0;
  absl::Duration wait;  // by which getting drafts held up steps

  // A pass is about to verify `drafts`.
  void note_drafted(std::span<const DraftedToken> drafts) {
    for (size_t i = 0; i < drafts.size() && i < drafted_at.size(); ++i) {
      ++drafted;
      ++drafted_at[i];
      run_ahead += drafts[i].made != DraftMade::kAfterVerdict;
      early += drafts[i].made == DraftMade::kBeforeVerdict;
    }
  }
  // Draft `position` of a pass has been committed.
  void note_accepted(size_t position) {
    ++accepted;
    ++accepted_at[position];
  }
};

// Without the positions that were never reached.
inline std::vector<int64_t> by_position(const DraftCounts& counts,
                                        const std::array<int64_t, kMaxDraftDepth>& at) {
  size_t size = at.size();
  while (size > 0 && counts.drafted_at[size - 1] == 0) --size;
  return {at.begin(), at.begin() + static_cast<std::ptrdiff_t>(size)};
}

}  // namespace brigade::runtime
