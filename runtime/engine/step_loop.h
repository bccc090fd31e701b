// What the step thread does, turn by turn: take in new requests, end what was cancelled or is late,
// give blocks to who waits, start a step on every idle microbatch, drive the busy ones, and turn
// their rows into committed tokens. It never waits; a turn that could do nothing says until when
// to sleep. It owns requests, sequences, KV blocks and models. One thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/core/waker.h"
#include "runtime/engine/batch_builder.h"
#include "runtime/engine/engine_config.h"
#include "runtime/engine/exchange_overlap.h"
#include "runtime/engine/inbox.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/status_board.h"
#include "runtime/model/step_model.h"
#include "runtime/scheduler/kv_blocks.h"
#include "runtime/scheduler/scheduler.h"
#include "runtime/speculative/accept.h"
#include "runtime/speculative/depth_control.h"
#include "runtime/speculative/draft_source.h"
#include "runtime/speculative/expert_demand.h"

namespace brigade::runtime {

// Sleeps until the waker is woken, or `until`.
using StepSleep = std::function<void(kernels::Waker& waker, absl::Time until)>;

// Measures steps for depth control.
using StepClock = std::function<absl::Time()>;

class StepLoop {
 public:
  struct Speculation {
    std::span<const int32_t> eos_tokens;
    DraftSource* drafts = nullptr;
    StepClock clock;
  };
  // One microbatch for each of `models`. What `speculation` points to, inbox, board and waker must
  // outlive the loop.
  StepLoop(const EngineConfig& config, std::vector<std::unique_ptr<StepModel>> models,
           const KvGeometry& kv, const Speculation& speculation, Inbox* inbox, StatusBoard* board,
           kernels::Waker* waker, StepSleep sleep = nullptr);

  // Runs one row through every model. The only call that waits, at most warm_up_timeout.
  absl::Status warm_up();
  // One turn; true when something moved.
  bool turn(absl::Time now);
  // After a turn that did nothing: until woken, or until there is something to do.
  void sleep(absl::Time now) { sleep_(*waker_, next_wake(now)); }
  // Ends every request with `why`; steps in flight are abandoned with their models.
  void end_all(const absl::Status& why);

 private:
  struct Microbatch {
    Microbatch(std::unique_ptr<StepModel> step_model, int block_size);
    std::unique_ptr<StepModel> model;
    BatchBuilder builder;
    StepPlan plan;
    bool busy = false;
    bool measured = false;  // its time teaches depth control
    absl::Time began = absl::InfinitePast();
  };

  // step_loop.cc: the turn.
  bool take_arrivals();
  bool end_cancelled_and_late(absl::Time now);
  void refresh_rooms();
  void admit(absl::Time now);
  bool start_step(Microbatch* microbatch, absl::Time now);
  bool drive_step(Microbatch* microbatch);
  void notice_cluster_change();
  void publish(absl::Time now);
  std::vector<std::vector<int64_t>> expert_rows_of_all() const;
  absl::Time next_wake(absl::Time now) const;
  void plan_expert_demand();
  absl::Status warm_up_one(StepModel* model, int block);
  absl::Status run_to_end(StepModel* model, const StepBatch& batch, absl::Time deadline);

  // step_results.cc: what a step's rows become, and how requests end.
  void step_failed(Microbatch* microbatch, const absl::Status& why);
  void step_done(Microbatch* microbatch, absl::Time now);
  static void mark_parked(Microbatch* microbatch);
  void take_rows(const StepSlice& slice, const Microbatch& microbatch, int index, absl::Time now);
  void row_not_finite(const StepSlice& slice, bool again);
  void fork_siblings(ActiveRequest* request, const Sequence& first);
  void deliver(ActiveRequest* request, Sequence* sequence, TokenEvent event, absl::Time now);
  void end_request(ActiveRequest* request, FinishReason reason, const absl::Status& why);
  void count_end(const absl::Status& why);
  void forget_done();

  // step_drafts.cc: drafts of a step and their verification.
  class Committing;
  void plan_drafts(StepPlan* plan, absl::Time now);
  void open_drafter(const ActiveRequest& request, Sequence* sequence);
  void ask_for_drafts(const StepSlice& slice, int index);
  bool commit_rows(ActiveRequest* request, Sequence* sequence, const VerifyInput& input,
                   absl::Time now, Verdict* verdict);
  void verify_slice(const StepSlice& slice, const Microbatch& microbatch, int first_index,
                    absl::Time now);
  void note_verdict(const StepSlice& slice, const Verdict& verdict);
  void note_wait(const StepPlan& plan, int deepest, absl::Duration wait);
  void note_time(const Microbatch& microbatch);
  void follow_routing();
  static void tell_drafter(const Sequence& sequence);

  const EngineConfig config_;
  const KvGeometry kv_;
  Inbox* const inbox_;
  StatusBoard* const board_;
  kernels::Waker* const waker_;
  const StepSleep sleep_;
  std::vector<Microbatch> microbatches_;
  KvBlocks blocks_;
  Scheduler scheduler_;
  ExchangeOverlap overlap_;
  VerifyScratch verify_scratch_;
  const std::span<const int32_t> eos_tokens_;
  DraftSource* const drafts_;
  const StepClock clock_;
  DepthControl depth_control_;
  std::optional<ExpertDemand> expert_demand_;  // none: a dense model
  std::vector<int64_t> layer_counts_;          // scratch, by expert
  int steps_since_routing_ = 0;
  int speculating_ = 0;                // requests
  std::vector<DepthAsk> asks_;         // scratch
  std::vector<int> asking_;            // scratch: slices of the asks
  std::vector<int> depths_;            // scratch
  std::vector<int32_t> draft_tokens_;  // scratch
  std::vector<TargetRow> rows_;        // scratch
  LoopCounts counts_;
  uint64_t cluster_version_ = 0;  // of all models together
  absl::Time last_turn_ = absl::InfinitePast();
  bool expert_rows_stale_ = true;
  bool something_ended_ = false;
  std::vector<std::unique_ptr<ActiveRequest>> active_;
  std::vector<std::unique_ptr<ActiveRequest>> arrivals_;  // scratch
  std::vector<ScheduledRequest*> started_;                // scratch
  std::vector<Expiry> expired_;                           // scratch
};

}  // namespace brigade::runtime
