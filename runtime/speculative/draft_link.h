// The coordinator's end of one draft worker's stream, whatever carries it: greeting, liveness, and
// two bounded mailboxes between the stream and the step thread, neither of which ever waits for the
// other. Commands are merged by sequence (CommandQueue). When too many drafts wait for the step
// thread the stream is read no further until they were taken. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/core/waker.h"
#include "runtime/speculative/command_queue.h"
#include "runtime/speculative/draft_messages.h"
#include "runtime/speculative/draft_status.h"
#include "runtime/speculative/vocabulary.h"

namespace brigade::runtime {

struct DraftLinkOptions {
  const Tokenizer* tokenizer = nullptr;  // null: no draft worker can be checked, all are refused
  absl::Duration ping_interval = absl::Milliseconds(500);
  absl::Duration lost_after = absl::Seconds(3);  // silence
  absl::Duration greeting_timeout = absl::Seconds(10);
  size_t max_waiting_tokens = 1 << 14;          // drafts not yet taken by the step thread
  size_t max_sequences = 1 << 12;               // with commands that wait
  int max_bad_messages = 64;                    // then the worker is sent away
  std::function<void(const std::string&)> log;  // one line; from any thread; may be empty
};

// What the step thread takes in one go; used again and again.
struct DraftArrivals {
  std::vector<ChunkMessage> chunks;
  std::vector<DraftNack> nacks;
};

class DraftLink {
 public:
  // `waker` is woken when next() may have something again, may_read() has become true or overdue()
  // has something to say.
  DraftLink(const DraftLinkOptions& options, uint64_t id, std::shared_ptr<kernels::Waker> waker,
            absl::Time now);

  uint64_t id() const { return id_; }

  // The stream's side.
  // An error ends the stream with it: a sentence for the worker.
  absl::Status said(DraftWorkerSays message, absl::Time now);
  bool may_read() const;
  // The next message to write, when the one before has been written.
  std::optional<DraftCoordinatorSays> next(absl::Time now);
  // Not OK: the stream has to end. Otherwise *next_check says when to ask again.
  absl::Status overdue(absl::Time now, absl::Time* next_check) const;
  void end();

  // The step thread's side.
  bool serving() const { return state_ == State::kServing; }
  bool ended() const { return state_ == State::kEnded; }
  int max_context() const { return max_context_; }
  int max_sequences() const { return max_sequences_; }
  void open(OpenDraft open);
  void commit(uint64_t sequence, uint64_t epoch, int base_length, std::span<const int32_t> tokens,
              int wanted);
  void close(uint64_t sequence, uint64_t epoch);
  // True when there was something; `arrivals` is replaced.
  bool take(DraftArrivals* arrivals);
  void count_bad_message();
  void set_open_sequences(int count) { open_sequences_ = count; }

  DraftLinkStatus status() const;

 private:
  enum class State { kGreeting, kComparing, kServing, kEnded };

  absl::Status on(DraftHello hello, absl::Time now);
  absl::Status on(const VocabularyPart& part, absl::Time now);
  absl::Status on(ChunkMessages chunks, absl::Time now);
  absl::Status on(DraftNack nack, absl::Time now);
  absl::Status on(const DraftPong& pong, absl::Time now);
  absl::Status check(const DraftHello& hello) const;
  template <typename Push>
  void push(Push push);

  const DraftLinkOptions options_;
  const uint64_t id_;
  const std::shared_ptr<kernels::Waker> waker_;
  const absl::Time opened_at_;
  std::atomic<State> state_{State::kGreeting};
  std::atomic<int> max_context_{0}, max_sequences_{0}, open_sequences_{0}, bad_messages_{0};
  std::atomic<bool> arrived_{false}, stalled_{false};

  mutable std::mutex mutex_;  // guards the rest
  std::string worker_id_;
  std::optional<VocabularyComparison> comparison_;
  bool answer_due_ = false;  // hello, or the wish for the vocabulary
  CommandQueue commands_;
  DraftArrivals arrivals_;
  size_t waiting_tokens_ = 0;
  absl::Time heard_at_, pinged_at_, ping_due_ = absl::InfiniteFuture();
  int64_t pings_ = 0;
  DraftPong pong_;
  int64_t chunks_ = 0, nacks_ = 0;
  absl::Duration round_trip_;
};

}  // namespace brigade::runtime
