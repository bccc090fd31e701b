// Decides who runs: admits waiting sequences while KV blocks last, plans each step under a row
// budget, takes blocks from the youngest when they run out, and names what has waited too long.
// Pure logic: no thread, no clock (the time is an argument), no model. Called by the step thread
// only.
//
// Order. Admission is first come, first served; sequences that gave their blocks back come first. A
// sequence loses its blocks only to an older one, or while its reader is slow; after
// max_preemptions it comes back with every block it can come to need and is left alone. So the
// oldest always gets on and each is preempted a bounded number of times.
//
// Parking. A sequence that needed an expert nobody holds is where it was before the step. It is
// planned again when the cluster has changed, or after parking_retry, doubled each time up to
// kMostRetryDoublings. Meanwhile it keeps its blocks, and may lose them as any other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "runtime/scheduler/kv_blocks.h"
#include "runtime/scheduler/scheduled_sequence.h"
#include "runtime/scheduler/step_plan.h"

namespace brigade::runtime {

struct SchedulerConfig {
  int max_running_sequences = 64;
  int microbatches = 1;         // steps in flight at a time
  int max_rows = 256;           // rows of one step
  int max_step_sequences = 64;  // sequences of one step
  int max_logit_rows = 64;      // of one step
  int prefill_chunk = 128;      // rows of one sequence in one step
  int prefill_reserve = 64;     // rows that decodes leave to prefill while any waits
  int max_preemptions = 4;
  absl::Duration queue_timeout = absl::Minutes(10);
  absl::Duration reader_timeout = absl::Seconds(60);
  absl::Duration parking_retry = absl::Milliseconds(50);
};

enum class ExpiryKind { kDeadline, kQueueTimeout, kReaderTimeout };
struct Expiry {
  ScheduledRequest* request = nullptr;
  ExpiryKind kind = ExpiryKind::kDeadline;
};

struct SchedulerCounters {
  int64_t steps = 0;
  int64_t preemptions = 0;
  int64_t prefix_hit_tokens = 0;
  int64_t paused_for_reader = 0;
  int64_t mixed_steps = 0;  // decodes and prefill together
  int64_t prompt_rows = 0;
  int64_t parkings = 0;  // sequences that left a step uncommitted
  int max_sequences_in_step = 0;
};

class Scheduler {
 public:
  // `blocks` must outlive the scheduler.
  Scheduler(const SchedulerConfig& config, KvBlocks* blocks);

  // Takes a request with its sequences set up (tokens known, room filled in) into the queue. It
  // must stay in place until leave().
  void enqueue(ScheduledRequest* request);
  // Gives blocks to waiting sequences, oldest first. Appends the requests that now start. `now`
  // dates pauses here and below.
  void admit(absl::Time now, std::vector<ScheduledRequest*>* started);
  // The next step of one microbatch; empty when nothing can run.
  void plan_step(absl::Time now, StepPlan* plan);
  // Rows that a planned step can take beyond its own, logits included.
  int spare_rows(const StepPlan& plan) const;
  // Lengthens a decode of the plan by as many of `drafts` as there are rows, room in the stream and
  // blocks for that nobody has to give up.
  void add_drafts(StepPlan* plan, StepSlice* slice, std::span<const int32_t> drafts);
  // The step has run (or failed: `computed` false leaves every sequence where it was). Parked
  // slices leave theirs where they were too.
  void step_ended(StepPlan* plan, bool computed, absl::Time now);
  // Experts may have found holders: parked sequences are tried again at once.
  void cluster_changed();
  // The earliest time after `after` at which a parked sequence is tried again.
  absl::Time next_retry(absl::Time after) const;

  // Logits of the sequence's last row were finite: its full blocks may be found by others.
  void confirm(ScheduledSequence* sequence);
  void append(ScheduledSequence* sequence, int32_t token);
  // The last appended token is a draft of the step that has just ended: its KV is there.
  void draft_accepted(ScheduledSequence* sequence);
  // What the step's drafts were has been settled: blocks that only they needed go back.
  void drafts_done(ScheduledSequence* sequence);
  // Starts `sibling` where `first` is, sharing its blocks; before either appends.
  void fork(const ScheduledSequence& first, ScheduledSequence* sibling);
  // Has the last row computed again in a step of its own.
  void repeat_alone(ScheduledSequence* sequence);
  // From any state; blocks go back at once, or when the step in flight ends.
  void end(ScheduledSequence* sequence);
  // Forgets a request whose sequences have all ended and are in no step.
  void leave(ScheduledRequest* request);

  void find_expired(absl::Time now, std::vector<Expiry>* expired) const;
  // The earliest time at which find_expired() can name something.
  absl::Time next_expiry() const;

  int queued_requests() const { return static_cast<int>(queue_.size()); }
  int64_t queued_tokens() const;
  int running_sequences() const { return static_cast<int>(running_.size()); }
  int preempted_sequences() const { return static_cast<int>(preempted_.size()); }
  int parked_sequences() const;
  const SchedulerCounters& counters() const { return counters_; }

 private:
  bool protected_from_preemption(const ScheduledSequence& sequence) const;
  bool has_room(ScheduledSequence* sequence, absl::Time now);
  int events_of_step(const ScheduledSequence& sequence) const;
  int active_sequences() const;
  bool take_blocks(ScheduledSequence* sequence);
  bool start_request(ScheduledRequest* request);
  void preempt(ScheduledSequence* victim);
  ScheduledSequence* find_victim(const ScheduledSequence* taker) const;
  int allocate_for(const ScheduledSequence& taker);
  void give_blocks_back(ScheduledSequence* sequence);

  struct Budget {
    int rows = 0, sequences = 0, logit_rows = 0;
  };
  bool plan_alone(absl::Time now, StepPlan* plan);
  void park(ScheduledSequence* sequence, bool at_once, absl::Time now);
  void sort_ready(absl::Time now);
  Budget rows_kept_for_prefill(const Budget& budget) const;
  bool plan_slice(ScheduledSequence* sequence, int most_rows, Budget* budget, StepPlan* plan);
  bool make_writable(ScheduledSequence* sequence, int first, int count, StepPlan* plan);

  const SchedulerConfig config_;
  KvBlocks* const blocks_;
  std::vector<ScheduledRequest*> requests_;             // all that have not left
  std::vector<ScheduledRequest*> queue_;                // not started, oldest first
  std::vector<ScheduledSequence*> preempted_;           // oldest first
  std::vector<ScheduledSequence*> running_;             // oldest first
  int unforked_siblings_ = 0;                           // of started requests: places kept for them
  std::vector<ScheduledSequence*> decodes_, prefills_;  // scratch of plan_step
  int64_t last_number_ = 0;
  int64_t cluster_changes_ = 0;
  SchedulerCounters counters_;
};

}  // namespace brigade::runtime
