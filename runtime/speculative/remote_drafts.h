// The sequences that draft workers draft for, as the step thread sees them: opens each at the
// worker with the fewest, tells it what is committed, takes what has arrived into the sequences'
// tails. A worker that is lost, full or lying costs drafts, never a wait and never a wrong token:
// its sequences are opened again, elsewhere or later. Step thread; must outlive its drafters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "runtime/speculative/draft_links.h"
#include "runtime/speculative/draft_tail.h"
#include "runtime/speculative/drafter.h"

namespace brigade::runtime {

struct RemoteDraftsOptions {
  DraftTailLimits limits;  // of every tail; max_positions of the target's context
  int window = 8;  // drafts wanted beyond the next pass's depth: the run-ahead; at most twice that
  int first_depth = 4;  // until the first pass says how much it wants
  absl::Duration retry_first = absl::Milliseconds(100), retry_longest = absl::Seconds(5);
  int max_shut_outs = 3;  // then a sequence gets no drafts any more
};

// What a drafter must know of a sequence beside its text. Copied.
struct SequenceToDraft {
  AcceptRule rule = AcceptRule::kGreedy;
  SamplingParams sampling;
  int sample_index = 0;
  int prompt_length = 0;
  int max_length = 0;               // tokens, where it ends at the latest
  std::vector<int32_t> end_tokens;  // EOS and stop ids
  int min_tokens = 0;
};

class RemoteDrafter;

class RemoteDrafts {
 public:
  // `links` outlives this.
  RemoteDrafts(DraftLinks& links, const RemoteDraftsOptions& options);
  ~RemoteDrafts();

  // Takes what has arrived. Call once a step, before drafts are asked for.
  void collect(absl::Time now);

  // `text`: what is committed so far. Opened at a worker as soon as there is one.
  std::unique_ptr<RemoteDrafter> open(SequenceToDraft sequence, std::span<const int32_t> text);

  bool has_worker() const;
  // Tails of open sequences included.
  RemoteDraftsCounters counters() const;

 private:
  friend class RemoteDrafter;
  struct Worker {
    std::shared_ptr<DraftLink> link;
    int open = 0;
  };

  void refresh();
  void take(const ChunkMessage& chunk, DraftLink& link);
  void take(const DraftNack& nack);
  Worker* pick(int length);
  Worker* worker_of(uint64_t link);

  DraftLinks& links_;
  const RemoteDraftsOptions options_;
  uint64_t version_ = ~uint64_t{0};  // of links_, as of the last refresh
  std::vector<Worker> workers_;      // that serve
  bool all_serve_ = false;
  absl::flat_hash_map<uint64_t, RemoteDrafter*> drafters_;  // by sequence
  uint64_t next_sequence_ = 1, next_epoch_ = 1;
  absl::Time now_ = absl::InfinitePast();
  absl::Time publish_at_ = absl::InfinitePast();
  DraftArrivals arrivals_;
  RemoteDraftsCounters counters_;  // of ended sequences
};

// One sequence's drafter. Ask draft() with 0 when nothing is wanted: the worker then rests.
class RemoteDrafter final : public Drafter {
 public:
  ~RemoteDrafter() override;

  void draft(std::span<const int32_t> text, int wanted, DraftList* drafts) override;
  void run_ahead(std::span<const int32_t> text, DraftList* drafts) override;
  void committed(std::span<const int32_t> text) override;

  bool attached() const { return link_ != nullptr; }
  const DraftTail& tail() const { return tail_; }

 private:
  friend class RemoteDrafts;
  RemoteDrafter(RemoteDrafts& owner, uint64_t id, SequenceToDraft sequence,
                std::span<const int32_t> text);

  void sync(std::span<const int32_t> text);
  void attach(std::span<const int32_t> text);
  void detach(absl::Time not_before);
  void back_off();
  int credit() const;

  RemoteDrafts& owner_;
  const uint64_t id_;
  const SequenceToDraft sequence_;
  DraftTail tail_;
  std::shared_ptr<DraftLink> link_;  // null: nobody drafts for it
  int wanted_ = 0;
  int told_length_ = 0, told_credit_ = 0;  // what the worker knows
  int failures_ = 0, shut_outs_ = 0;
  bool given_up_ = false;
  absl::Time not_before_ = absl::InfinitePast();
};

}  // namespace brigade::runtime
