// What a draft worker and the coordinator say to each other, as plain values: the rules of both
// ends and their tests need no Protobuf. The wire is proto/brigade/v1/draft.proto; draft_wire.h
// converts. Data; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/request/request.h"
#include "runtime/speculative/accept.h"
#include "runtime/speculative/draft_chunk.h"
#include "runtime/speculative/draft_law.h"

namespace brigade::runtime {

// Bounds of what one side takes from the other; more is refused by name.
struct DraftBounds {
  static constexpr int kMaxText = 1 << 20;        // tokens of a sequence
  static constexpr int kMaxWanted = 256;          // drafts beyond the committed text
  static constexpr int kMaxLawEntries = 1024;     // of one token
  static constexpr int kMaxListEntries = 4096;    // bias, allowed, banned, end tokens
  static constexpr int kMaxChunks = 4096;         // of one message
  static constexpr int kMaxVocabulary = 1 << 20;  // ids
  static constexpr int kMaxTokenBytes = 4096;     // of one token of the vocabulary
  static constexpr int kMaxPartTokens = 4096;     // ids of one VocabularyPart
  static constexpr int kMaxNameBytes = 256;
  static constexpr int kMaxMessageBytes = 8 << 20;
};

// The worker says:
struct DraftHello {
  std::string worker_id, build_version;
  uint64_t vocabulary_hash = 0;
  int vocabulary_size = 0, max_sequences = 0, max_context = 0;
};
struct VocabularyToken {
  bool present = false, special = false, control = false;
  std::string content, bytes;
  bool operator==(const VocabularyToken&) const = default;
};
struct VocabularyPart {
  int first_id = 0;
  std::vector<VocabularyToken> tokens;
  bool last = false;
};
// Owns what a DraftChunk points to.
struct ChunkMessage {
  uint64_t sequence = 0;
  uint64_t epoch = 0;
  int base_length = 0;
  uint64_t prefix_hash = 0;
  int position = 0;
  std::vector<int32_t> tokens;
  LawForm form = LawForm::kNone;
  std::vector<int32_t> law_sizes, law_tokens;
  std::vector<float> law_weights;
  // By token: its logit less the best other one's, of the drafter. 0: not known.
  std::vector<float> margins;

  DraftChunk view() const {
    return {.epoch = epoch,
            .base_length = base_length,
            .prefix_hash = prefix_hash,
            .position = position,
            .tokens = tokens,
            .form = form,
            .law_sizes = law_sizes,
            .law_tokens = law_tokens,
            .law_weights = law_weights};
  }
};
struct ChunkMessages {
  std::vector<ChunkMessage> chunks;
};
enum class NackReason { kFull, kOutOfStep, kRefused };
struct DraftNack {
  uint64_t sequence = 0;
  uint64_t epoch = 0;
  NackReason reason = NackReason::kRefused;
  std::string detail;
};
struct DraftPong {
  int64_t number = 0, steps = 0, rows = 0, drafted = 0, open_sequences = 0;
};
using DraftWorkerSays =
    std::variant<DraftHello, VocabularyPart, ChunkMessages, DraftNack, DraftPong>;

// The coordinator says:
struct CoordinatorHello {
  std::string build_version;
  uint64_t vocabulary_hash = 0;
  int vocabulary_size = 0;
  int64_t ping_interval_ms = 0, lost_after_ms = 0;
};
struct VocabularyWanted {};
struct OpenDraft {
  uint64_t sequence = 0;
  uint64_t epoch = 0;           // rises with every open
  std::vector<int32_t> tokens;  // prompt and what has been committed
  int prompt_length = 0;
  int wanted = 0;      // drafts beyond the committed text, run-ahead included
  int max_length = 0;  // the sequence ends there at the latest
  AcceptRule rule = AcceptRule::kGreedy;
  SamplingParams sampling;  // what Policy reads, and the seed
  int sample_index = 0;
  int law_entries = 0;              // at most, of a token; with rejection
  std::vector<int32_t> end_tokens;  // nothing follows them
  int min_tokens = 0;               // of output; end_tokens are forbidden before
};
struct CommitDraft {
  uint64_t sequence = 0;
  uint64_t epoch = 0;
  int base_length = 0;  // committed before `tokens`
  std::vector<int32_t> tokens;
  int wanted = 0;
};
struct CloseDraft {
  uint64_t sequence = 0;
  uint64_t epoch = 0;
};
using DraftCommand = std::variant<OpenDraft, CommitDraft, CloseDraft>;
struct DraftCommands {
  std::vector<DraftCommand> commands;
};
struct DraftPing {
  int64_t number = 0;
};
using DraftCoordinatorSays =
    std::variant<CoordinatorHello, VocabularyWanted, DraftCommands, DraftPing>;

}  // namespace brigade::runtime
