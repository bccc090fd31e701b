#include "runtime/speculative/command_queue.h"

#include <algorithm>
#include <utility>

namespace brigade::runtime {
namespace {

// Enough for the tokens of a few passes without another allocation.
constexpr size_t kReservedTokens = 64;

}  // namespace

CommandQueue::CommandQueue(size_t max_sequences) : max_sequences_(max_sequences) {}

// The sequence's entry, or a blank one; null when there is no room.
CommandQueue::Entry* CommandQueue::entry(uint64_t sequence) {
  for (size_t i = 0; i < count_; ++i) {
    if (entries_[i].sequence == sequence) return &entries_[i];
  }
  if (count_ == max_sequences_) return nullptr;
  if (count_ == entries_.size()) entries_.emplace_back().commit.tokens.reserve(kReservedTokens);
  Entry& blank = entries_[count_++];
  blank.sequence = sequence;
  blank.open.reset();
  blank.has_commit = blank.has_close = false;
  return &blank;
}

bool CommandQueue::open(OpenDraft open) {
  Entry* place = entry(open.sequence);
  if (place == nullptr) return false;
  // Whatever was said of an earlier epoch is void.
  place->has_commit = place->has_close = false;
  place->open = std::move(open);
  return true;
}

bool CommandQueue::commit(uint64_t sequence, uint64_t epoch, int base_length,
                          std::span<const int32_t> tokens, int wanted) {
  Entry* place = entry(sequence);
  if (place == nullptr) return false;
  if (place->open) {
    place->open->tokens.insert(place->open->tokens.end(), tokens.begin(), tokens.end());
    place->open->wanted = wanted;
    return true;
  }
  CommitDraft& commit = place->commit;
  if (!std::exchange(place->has_commit, true)) {
    commit.sequence = sequence;
    commit.epoch = epoch;
    commit.base_length = base_length;
    commit.tokens.clear();
  }
  commit.tokens.insert(commit.tokens.end(), tokens.begin(), tokens.end());
  commit.wanted = wanted;
  return true;
}

bool CommandQueue::close(uint64_t sequence, uint64_t epoch) {
  Entry* place = entry(sequence);
  if (place == nullptr) return false;
  // Told even when the open was not: one of an earlier epoch may have been.
  place->open.reset();
  place->has_commit = false;
  place->has_close = true;
  place->close = {.sequence = sequence, .epoch = epoch};
  return true;
}

void CommandQueue::take(DraftCommands* commands) {
  commands->commands.clear();
  size_t tokens = 0, taken = 0;
  for (; taken < count_ && tokens < kMaxTokens; ++taken) {
    Entry& entry = entries_[taken];
    if (entry.has_commit) tokens += entry.commit.tokens.size();
    if (entry.open) {
      tokens += entry.open->tokens.size();
      commands->commands.push_back(*std::exchange(entry.open, std::nullopt));
    }
    if (entry.has_commit) commands->commands.push_back(entry.commit);
    if (entry.has_close) commands->commands.push_back(entry.close);
  }
  std::rotate(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(taken),
              entries_.begin() + static_cast<std::ptrdiff_t>(count_));
  count_ -= taken;
}

}  // namespace brigade::runtime
