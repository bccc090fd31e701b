// The bounded queue between the step thread, which produces committed tokens of one request, and
// the call that writes them to the client. The producer never blocks: it asks has_room() before it
// lets a sequence take another step, so a slow reader pauses its own request and nobody else, and
// memory stays bounded. The consumer may poll, wait with a deadline, or set a callback.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace brigade::runtime {

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

struct TokenLogprob {
  double logprob = 0;  // natural log, of the model's own distribution (before the sampling policy)
  int rank = 0;        // 1: most likely
  std::vector<std::pair<int32_t, double>> top;  // most likely first
};

struct SequenceUsage {
  int prompt_tokens = 0;
  int cached_prompt_tokens = 0;  // found in the prefix cache
  int completion_tokens = 0;     // generated_so_far included
  int preemptions = 0;
  int target_passes = 0;  // steps that gave tokens
  int drafted_tokens = 0, accepted_drafts = 0;
  // By position in a pass; as long as the deepest that was verified.
  std::vector<int64_t> drafted_by_position, accepted_by_position;
  // Of the drafted: made in ignorance of the pass before; of those: there when it ended.
  int run_ahead_drafts = 0, early_drafts = 0;
  absl::Duration draft_wait;  // by which getting drafts held up its steps
};

// One committed token, or the end of one sequence, or both.
struct TokenEvent {
  int sample_index = 0;
  std::optional<int32_t> token;  // absent in a pure end event
  std::string piece;             // the token's raw bytes
  std::string text;              // text that became safe to show: valid UTF-8, may be empty
  std::optional<TokenLogprob> logprob;
  FinishReason finish = FinishReason::kNone;
  std::string stop_match;                     // the stop string, if one ended it
  int32_t stop_token = -1;                    // the EOS or stop id, if one ended it
  absl::Status error;                         // with kError or kCancelled
  SequenceUsage usage;                        // with a finish
  absl::Duration queued, first_token, total;  // with a finish: since submit
};

class TokenStream {
 public:
  // `capacity`: events held at most, end events aside (one per sequence; kMaxSequences at most).
  // `on_room`: called, from the consumer's thread, when a full queue gets room, when events are
  // taken after room() fell short, and when the consumer cancels; the engine wakes its step thread
  // with it. May be empty.
  static constexpr size_t kMaxSequences = 64;
  TokenStream(size_t capacity, std::function<void()> on_room);

  // Producer.
  bool has_room() const;
  // Events that the queue takes now, end events aside. When they are fewer than `wanted`, on_room
  // is called as soon as there are more.
  size_t room(size_t wanted);
  void push(TokenEvent event);  // CHECKs room unless the event is an end
  void close();                 // after the last end event
  bool cancelled() const;

  // Consumer. next(): an event; nullopt at the end; DEADLINE_EXCEEDED when nothing came in time.
  absl::StatusOr<std::optional<TokenEvent>> next(absl::Time deadline);
  // Non-blocking: false when nothing is there now. At the end sets *ended.
  bool try_next(TokenEvent* event, bool* ended);
  // Called from the producer's thread after each push and close from now on; look once with
  // try_next for what came before. Set at most once, also while the producer is at work; replaces
  // next().
  void set_on_readable(std::function<void()> on_readable);
  void cancel();  // the client is gone; the engine frees everything at its next step

 private:
  bool take_first(TokenEvent* event, bool* gave_room);

  mutable std::mutex mutex_;
  std::condition_variable readable_;
  const size_t capacity_;
  std::vector<TokenEvent> ring_;  // planned at start: a push allocates nothing
  size_t first_ = 0;
  size_t count_ = 0;
  std::function<void()> on_room_;
  std::function<void()> on_readable_;  // never changes once on_readable_set_
  bool on_readable_set_ = false;
  bool producer_waits_ = false;  // room() fell short of what was wanted
  bool closed_ = false;
  bool cancelled_ = false;
};

}  // namespace brigade::runtime
