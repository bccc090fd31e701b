// Says at once whether a new request is taken in: the queue is bounded by requests and by prompt
// tokens, and what can never fit the KV cache is refused with the numbers. Plain logic without a
// lock; the engine calls it under the lock of its inbox, so that the answer does not depend on the
// step thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace brigade::runtime {

struct AdmissionLimits {
  int max_running_sequences = 64;
  int max_waiting_requests = 256;
  int64_t max_waiting_tokens = 1 << 20;  // prompt tokens (with resumed ones) of waiting requests
  int kv_blocks = 0;
  int block_size = 16;
  int max_blocks_per_sequence = 0;
};

struct AdmissionTicket {
  int sequences = 0;
  int64_t tokens = 0;
  bool waits = false;  // no free place among the running when it came
};

class Admission {
 public:
  explicit Admission(const AdmissionLimits& limits) : limits_(limits) {}

  // `tokens`: known at the start (prompt and resumed); `max_positions`: KV positions one sequence
  // can come to need. RESOURCE_EXHAUSTED names the bound and both numbers.
  absl::Status enter(int sequences, int64_t tokens, int64_t max_positions, AdmissionTicket* ticket);
  // The same answer without taking the request in.
  absl::Status check(int sequences, int64_t tokens, int64_t max_positions) const;
  // The request got its first blocks, or ended in the queue.
  void left_queue(AdmissionTicket* ticket);
  // The request has ended; after left_queue().
  void ended(const AdmissionTicket& ticket);

  int live_requests() const { return live_requests_; }
  int waiting_requests() const { return waiting_requests_; }
  int64_t waiting_tokens() const { return waiting_tokens_; }

 private:
  absl::Status check_fits(int64_t max_positions) const;
  bool would_wait(int sequences) const;

  const AdmissionLimits limits_;
  int live_requests_ = 0;
  int live_sequences_ = 0;
  int waiting_requests_ = 0;  // beyond those for which a running place was free
  int64_t waiting_tokens_ = 0;
};

}  // namespace brigade::runtime
