// What an operator may set about the engine, with the bounds each value is checked against. Data.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/request/request.h"

namespace brigade::runtime {

struct EngineConfig {
  int max_running_sequences = 64;        // 1..4096
  int max_waiting_requests = 256;        // 0..1000000, beyond those that run
  int64_t max_waiting_tokens = 1 << 20;  // prompt tokens of waiting requests, 1..2^40
  int max_rows = 0;                      // token budget of one microbatch; 0: the model's limit
  int prefill_chunk = 128;               // rows of one sequence in one step, 1..65536
  int prefill_reserve = 64;              // rows that decodes leave to waiting prompts, 1..65536
  int max_preemptions = 4;               // 1..1000; then a sequence is left alone
  int stream_capacity = 256;             // events held for a reader, 1..65536
  // For requests that leave it open.
  SpeculationParams speculation = {.mode = SpeculationMode::kOff, .depth = 4};
  int max_draft_depth = 8;  // drafts of one sequence in one step, 0..16
  absl::Duration queue_timeout = absl::Minutes(10);
  absl::Duration reader_timeout = absl::Seconds(60);
  absl::Duration warm_up_timeout = absl::Seconds(60);
  // A sequence whose expert nobody holds is tried again when the cluster changes, or after this.
  absl::Duration parking_retry = absl::Milliseconds(50);
  absl::Duration stall_limit = absl::Seconds(10);  // no step for so long: not alive
};

// INVALID_ARGUMENT with the key, its value and its bounds.
absl::Status validate(const EngineConfig& config);

}  // namespace brigade::runtime
