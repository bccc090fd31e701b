#include "runtime/engine/status_board.h"

#include <utility>

#include "absl/time/clock.h"

namespace brigade::runtime {
namespace {

DraftingStatus drafting_of(const LoopCounts& counts) {
  return {.drafted_by_position = by_position(counts.drafts, counts.drafts.drafted_at),
          .accepted_by_position = by_position(counts.drafts, counts.drafts.accepted_at),
          .run_ahead_drafts = counts.drafts.run_ahead,
          .early_drafts = counts.drafts.early,
          .passes = counts.draft_passes,
          .verify_steps = counts.verify_steps,
          .wait_seconds = absl::ToDoubleSeconds(counts.drafts.wait),
          .step_seconds = absl::ToDoubleSeconds(counts.draft_step_time),
          .distinct_experts = counts.distinct_experts,
          .slowest_experts = counts.slowest_experts,
          .resting_sequences = counts.resting_sequences};
}

}  // namespace

StatusBoard::StatusBoard(absl::Duration stall_limit)
    : stall_limit_(stall_limit), last_progress_ns_(absl::ToUnixNanos(absl::Now())) {}

void StatusBoard::publish(const LoopCounts& counts) {
  std::lock_guard lock(mutex_);
  counts_ = counts;
}

void StatusBoard::publish_expert_rows(std::vector<std::vector<int64_t>> rows) {
  expert_rows_wanted_ = false;
  std::lock_guard lock(mutex_);
  expert_rows_ = std::move(rows);
}

void StatusBoard::set_ready() {
  std::lock_guard lock(mutex_);
  ready_ = true;
  not_ready_reason_.clear();
}

void StatusBoard::set_not_ready(const std::string& reason) {
  std::lock_guard lock(mutex_);
  ready_ = false;
  not_ready_reason_ = reason;
}

void StatusBoard::made_progress(absl::Time now) { last_progress_ns_ = absl::ToUnixNanos(now); }

void StatusBoard::fill(GeneratorStatus* status, bool work_exists, absl::Time now) const {
  const absl::Duration since = now - absl::FromUnixNanos(last_progress_ns_);
  status->step_loop_alive = !work_exists || since <= stall_limit_;
  expert_rows_wanted_ = true;
  std::lock_guard lock(mutex_);
  status->ready = ready_;
  status->not_ready_reason = not_ready_reason_;
  status->waiting_requests = counts_.waiting_requests;
  status->waiting_tokens = counts_.waiting_tokens;
  status->running_sequences = counts_.running_sequences;
  status->parked_sequences = counts_.parked_sequences;
  status->parkings = counts_.parkings;
  status->verify_passes = counts_.verify_passes;
  status->drafted_tokens = counts_.drafts.drafted;
  status->accepted_drafts = counts_.drafts.accepted;
  status->drafting = drafting_of(counts_);
  status->kv_blocks_in_use = counts_.kv_blocks_in_use;
  status->kv_blocks_cached = counts_.kv_blocks_cached;
  status->requests_finished = counts_.finished;
  status->requests_failed = counts_.failed;
  status->requests_cancelled = counts_.cancelled;
  status->requests_expired = counts_.expired;
  status->steps = counts_.steps;
  status->prompt_tokens = counts_.prompt_tokens;
  status->generated_tokens = counts_.generated_tokens;
  status->prefix_hit_tokens = counts_.prefix_hit_tokens;
  status->preemptions = counts_.preemptions;
  status->paused_for_reader = counts_.paused_for_reader;
  status->nonfinite_rows = counts_.nonfinite_rows;
  status->max_sequences_in_step = counts_.max_sequences_in_step;
  status->mixed_steps = counts_.mixed_steps;
  status->exchange_seconds = counts_.exchange_seconds;
  status->covered_exchange_seconds = counts_.covered_exchange_seconds;
  status->graph_launches = counts_.graphs.launches;
  status->graph_recordings = counts_.graphs.recordings;
  status->graph_evictions = counts_.graphs.evictions;
  status->graph_shapes = counts_.graphs.shapes;
  status->expert_rows = expert_rows_;
}

}  // namespace brigade::runtime
