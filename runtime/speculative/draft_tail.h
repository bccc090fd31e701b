// What the coordinator holds of one sequence's run-ahead drafts: the tokens that have arrived and
// continue its committed text without a gap. The worker drafts on without waiting for verdicts, so
// a chunk may be based on less than what is committed by now; what agrees with the committed text
// is kept, what does not is dropped, and a message that no honest worker sends shuts this one
// sequence out until it is opened again. Pure state, bounded, planned at construction. Step thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "runtime/speculative/accept.h"
#include "runtime/speculative/draft_chunk.h"
#include "runtime/speculative/draft_list.h"

namespace brigade::runtime {

struct DraftTailLimits {
  int vocab = 0;
  int max_positions = 0;     // of the text
  int max_run_ahead = 16;    // drafts beyond the committed text that the worker knows
  int max_law_entries = 32;  // of one token
};

enum class ChunkFate {
  kTaken,  // something of it, perhaps nothing new, continues the tail
  kOldEpoch,
  kOldBase,   // made before the worker learned of a mismatch
  kDiverged,  // follows another text than the committed one
  kGap,       // what comes before it never arrived
  kBad,       // not what an honest worker sends; the sequence is shut out now
  kShutOut,
};

struct DraftTailCounters {
  int64_t taken = 0;    // tokens
  int64_t dropped = 0;  // tokens of chunks that were not taken
  int64_t run_ahead =
      0;                // matched tokens that were drafted before the verdict before them was known
  int64_t matched = 0;  // tokens that were committed as drafted
};

class DraftTail {
 public:
  // `text`: the committed text at the time the sequence is opened at the worker.
  DraftTail(const DraftTailLimits& limits, AcceptRule rule, uint64_t epoch,
            std::span<const int32_t> text);

  // For kBad, `why` says what was wrong.
  ChunkFate take(const DraftChunk& chunk, absl::Status* why);
  // One token has been committed. An equal draft moves up; another one ends the chain.
  void commit(int32_t token);
  // Opened at a (new) worker: nothing of before counts.
  void reopen(uint64_t epoch);

  // Replaces `drafts` with the first `wanted` tokens of the tail.
  void read(int wanted, DraftList* drafts) const;
  // Appends tail token `index` to `drafts`, if it is there.
  void read_one(int index, DraftList* drafts) const;

  int size() const { return count_; }
  // Committed tokens that the worker knew of when it made tail token `index`.
  int base_length(int index) const { return held(index).base_length; }
  // Of the token drafted for tail place `index`, seen from the last commit of tokens.
  DraftMade made(int index) const;
  int committed_length() const { return static_cast<int>(hashes_.size()) - 1; }
  bool shut_out() const { return shut_out_; }
  uint64_t epoch() const { return epoch_; }
  const DraftTailCounters& counters() const { return counters_; }

 private:
  struct Held {
    int32_t token = 0;
    int base_length = 0;
    int arrived_length = 0;  // committed tokens when it arrived
    uint64_t hash = 0;       // of the text up to and with this token
    LawForm form = LawForm::kNone;
    Distribution law;
  };
  Held& held(int index) { return ring_[static_cast<size_t>(first_ + index) % ring_.size()]; }
  const Held& held(int index) const {
    return ring_[static_cast<size_t>(first_ + index) % ring_.size()];
  }
  absl::Status check_place(const DraftChunk& chunk) const;
  absl::Status check_tokens(const DraftChunk& chunk);
  absl::Status check_laws(const DraftChunk& chunk);
  ChunkFate fate_of(const DraftChunk& chunk, absl::Status* why);
  ChunkFate join(const DraftChunk& chunk);
  uint64_t hash_before(int position) const;
  void append(const DraftChunk& chunk, size_t index, size_t law_first, uint64_t hash);

  const DraftTailLimits limits_;
  const AcceptRule rule_;
  uint64_t epoch_;
  bool shut_out_ = false;
  int min_base_ = 0;              // after a mismatch: the worker must know of at least this much
  std::vector<uint64_t> hashes_;  // [committed + 1], of the text before each position
  std::vector<Held> ring_;        // [max_run_ahead]
  int first_ = 0;
  int count_ = 0;
  Distribution law_;  // scratch
  DraftTailCounters counters_;
};

}  // namespace brigade::runtime
