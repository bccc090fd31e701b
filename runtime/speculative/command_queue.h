// Commands on their way to one draft worker, merged by sequence: a worker that takes nothing for a
// while gets one open, one commit and one close of each sequence, so the queue is bounded by the
// sequences. Order matters within a sequence only. Not thread-safe; owned by a DraftLink. Memory of
// commits is used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/speculative/draft_messages.h"

namespace brigade::runtime {

class CommandQueue {
 public:
  static constexpr size_t kMaxTokens = 1 << 18;

  explicit CommandQueue(size_t max_sequences);

  // False, with nothing changed, when commands of max_sequences other sequences wait: the worker
  // takes nothing.
  bool open(OpenDraft open);
  // `tokens` follow what the sequence's last command said.
  bool commit(uint64_t sequence, uint64_t epoch, int base_length, std::span<const int32_t> tokens,
              int wanted);
  bool close(uint64_t sequence, uint64_t epoch);

  bool empty() const { return count_ == 0; }
  // Moves what one message takes to `commands`, in order: whole sequences, as many as have
  // kMaxTokens together, at least one.
  void take(DraftCommands* commands);
  void clear() { count_ = 0; }

 private:
  struct Entry {
    uint64_t sequence = 0;
    std::optional<OpenDraft> open;
    bool has_commit = false, has_close = false;
    CommitDraft commit;
    CloseDraft close;
  };
  Entry* entry(uint64_t sequence);

  const size_t max_sequences_;
  std::vector<Entry> entries_;  // the first count_ are in use
  size_t count_ = 0;
};

}  // namespace brigade::runtime
