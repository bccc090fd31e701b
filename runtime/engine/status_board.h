// Where the step thread writes its gauges and counters and any thread reads them; also the watchdog
// that tells a loop that works or sleeps from one that is stuck. Thread-safe; publishing allocates
// nothing.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/engine/generator.h"
#include "runtime/model/step_shape.h"
#include "runtime/speculative/draft_counts.h"

namespace brigade::runtime {

// What the step loop counts; the rest of a GeneratorStatus comes from elsewhere. Plain numbers.
struct LoopCounts {
  int waiting_requests = 0;
  int64_t waiting_tokens = 0;
  int running_sequences = 0, parked_sequences = 0;
  int kv_blocks_in_use = 0, kv_blocks_cached = 0;
  int64_t finished = 0, failed = 0, cancelled = 0, expired = 0;
  int64_t steps = 0, prompt_tokens = 0, generated_tokens = 0;
  int64_t prefix_hit_tokens = 0, preemptions = 0, paused_for_reader = 0, nonfinite_rows = 0;
  int64_t parkings = 0;
  int64_t verify_passes = 0;
  DraftCounts drafts;
  int64_t draft_passes = 0, verify_steps = 0;
  absl::Duration draft_step_time;
  double distinct_experts = 0, slowest_experts = 0;
  int resting_sequences = 0;
  int max_sequences_in_step = 0;
  int64_t mixed_steps = 0;
  double exchange_seconds = 0, covered_exchange_seconds = 0;
  StepGraphCounts graphs;  // of all microbatches
};

class StatusBoard {
 public:
  explicit StatusBoard(absl::Duration stall_limit);

  // Step thread.
  void publish(const LoopCounts& counts);
  void publish_expert_rows(std::vector<std::vector<int64_t>> rows);
  bool expert_rows_wanted() const { return expert_rows_wanted_; }
  void set_ready();
  void set_not_ready(const std::string& reason);
  void made_progress(absl::Time now);

  // Any thread. `work_exists`: requests have been accepted that have not ended.
  void fill(GeneratorStatus* status, bool work_exists, absl::Time now) const;

 private:
  const absl::Duration stall_limit_;
  mutable std::mutex mutex_;
  LoopCounts counts_;
  std::vector<std::vector<int64_t>> expert_rows_;
  std::string not_ready_reason_ = "loading";
  bool ready_ = false;
  mutable std::atomic<bool> expert_rows_wanted_ = false;
  std::atomic<int64_t> last_progress_ns_;
};

}  // namespace brigade::runtime
