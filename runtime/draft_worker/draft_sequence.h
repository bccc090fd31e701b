// One open sequence at the draft worker: what the coordinator has committed and this worker's
// guesses behind it (DraftMirror), where its KV stands, and what its next token may be drawn from.
// Draft thread; owned by the engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/sampling/policy.h"
#include "runtime/speculative/draft_messages.h"
#include "runtime/speculative/draft_mirror.h"

namespace brigade::runtime::draft_worker {

struct SequenceLimits {
  int vocab = 0;        // ids this worker knows
  int max_context = 0;  // tokens of a sequence
};

// INVALID_ARGUMENT names the field. Entries of the policy's lists that this worker's vocabulary
// does not have are taken out: its model never proposes them.
absl::Status check_open(const SequenceLimits& limits, OpenDraft* open);

class DraftSequence {
 public:
  // `open` has been checked. `touched`: a clock of commands, for eviction.
  DraftSequence(OpenDraft open, const SequenceLimits& limits, uint64_t touched);

  uint64_t id() const { return open_.sequence; }
  uint64_t epoch() const { return open_.epoch; }
  AcceptRule rule() const { return open_.rule; }
  RandomKey key() const;
  const DraftMirror& mirror() const { return mirror_; }
  std::span<const int32_t> text() const { return mirror_.text(); }
  int length() const { return static_cast<int>(mirror_.text().size()); }

  int pending_rows() const { return length() - computed; }
  int law_entries() const { return open_.law_entries; }

  // The next token is wanted: within the credit, the context and the sequence's own end.
  bool wants_draft() const;
  // What the next token may be drawn from.
  PolicyInput policy_input() const;
  void add_guess(int32_t token);
  // As DraftMirror::commit; rows of KV that are no longer right are taken off `computed`. Returns
  // the number of guesses undone.
  absl::StatusOr<int> commit(const CommitDraft& commit, uint64_t touched);

  uint64_t touched() const { return touched_; }

  std::vector<int> blocks;  // KV, logical to physical
  int computed = 0;         // leading positions whose KV is in the blocks

 private:
  bool ends(int32_t token) const;
  bool counts_needed() const;

  const SequenceLimits limits_;
  const OpenDraft open_;
  DraftMirror mirror_;
  TokenCounts counts_;            // of the text, guesses included; only with penalties
  std::vector<int32_t> guesses_;  // scratch of commit()
  int wanted_ = 0;
  int end_at_ = 0;        // length that guesses do not pass
  int ended_length_ = 0;  // length with the guess that ends the sequence; 0: none
  uint64_t touched_ = 0;
};

}  // namespace brigade::runtime::draft_worker
