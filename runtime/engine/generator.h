// The engine as the API sees it: requests in, token streams out. The real one runs the step loop;
// tests put a scripted one here. All methods are thread-safe and return at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/request/request.h"
#include "runtime/stream/token_stream.h"

namespace brigade::runtime {

// How speculation does; counters since start.
struct DraftingStatus {
  std::vector<int64_t> drafted_by_position, accepted_by_position;
  int64_t run_ahead_drafts = 0, early_drafts = 0;  // as in SequenceUsage
  int64_t passes = 0;                              // of sequences that want drafts
  int64_t verify_steps = 0;  // steps with drafts of any sequence, and no expert missing
  double wait_seconds = 0;   // by which getting drafts held up steps
  double step_seconds = 0;   // of steps with a sequence that wants drafts, the wait not included
  // Of the verify steps, summed: distinct experts a layer (mean over layers), and those of the
  // holder that reads most.
  double distinct_experts = 0, slowest_experts = 0;
  int resting_sequences = 0;  // now: none are asked for, they do not pay
};

// Gauges are now, counters since start.
struct GeneratorStatus {
  bool ready = false;  // a warm-up step has run
  bool draining = false;
  bool step_loop_alive = true;  // false: work exists and no step has ended for stall_limit
  std::string not_ready_reason;
  int waiting_requests = 0;
  int64_t waiting_tokens = 0;
  int running_sequences = 0;
  int parked_sequences = 0;  // of those: wait for an expert that nobody holds
  int kv_blocks_total = 0;
  int kv_blocks_in_use = 0;  // held by sequences
  int kv_blocks_cached = 0;  // committed prefixes nobody holds now; reusable at once
  int64_t requests_accepted = 0, requests_finished = 0, requests_failed = 0;
  int64_t requests_cancelled = 0, requests_rejected = 0, requests_expired = 0;
  int64_t steps = 0, prompt_tokens = 0, generated_tokens = 0;
  int64_t prefix_hit_tokens = 0, preemptions = 0, paused_for_reader = 0, nonfinite_rows = 0;
  int64_t parkings = 0;       // sequences that left a step for want of an expert
  int64_t verify_passes = 0;  // steps of a sequence with drafts
  int64_t drafted_tokens = 0, accepted_drafts = 0;
  DraftingStatus drafting;
  int max_sequences_in_step = 0;  // largest batch so far
  int64_t mixed_steps = 0;        // steps with prefill chunks and decodes together
  // Microbatches at the experts, summed; and how long of it others were computed here.
  double exchange_seconds = 0, covered_exchange_seconds = 0;
  // Steps as graphs of a GPU: segments launched and recorded, shapes given up and held now.
  int64_t graph_launches = 0, graph_recordings = 0, graph_evictions = 0;
  int graph_shapes = 0;
  std::vector<std::vector<int64_t>> expert_rows;  // [moe layer][expert], rows routed since start
};

class Generator {
 public:
  virtual ~Generator() = default;

  // The request must have passed validate(). RESOURCE_EXHAUSTED at once when the queue is full, or
  // when prompt and max_tokens can never fit the KV cache (the sentence gives both numbers);
  // UNAVAILABLE while draining or before ready. Cancel through the stream.
  virtual absl::StatusOr<std::shared_ptr<TokenStream>> submit(GenerateRequest request) = 0;

  virtual GeneratorStatus status() const = 0;

  // No new requests; running and waiting ones finish. Then idle() holds.
  virtual void start_drain() = 0;
  virtual bool idle() const = 0;
};

}  // namespace brigade::runtime
