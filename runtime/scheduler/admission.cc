#include "runtime/scheduler/admission.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"

namespace brigade::runtime {

bool Admission::would_wait(int sequences) const {
  return live_sequences_ + sequences > limits_.max_running_sequences;
}

absl::Status Admission::check(int sequences, int64_t tokens, int64_t max_positions) const {
  if (absl::Status fits = check_fits(max_positions); !fits.ok()) return fits;
  if (sequences > limits_.max_running_sequences) {
    return absl::ResourceExhaustedError(absl::StrCat("num_sequences is ", sequences,
                                                     " but at most ", limits_.max_running_sequences,
                                                     " sequences run at a time"));
  }
  const bool waits = would_wait(sequences);
  if (waits && waiting_requests_ >= limits_.max_waiting_requests) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", waiting_requests_,
                                                     " of ", limits_.max_waiting_requests,
                                                     " requests are waiting; retry later"));
  }
  if (waits && waiting_requests_ > 0 && waiting_tokens_ + tokens > limits_.max_waiting_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", waiting_tokens_, " prompt tokens are waiting, this request has ",
        tokens, " and the bound is ", limits_.max_waiting_tokens, "; retry later"));
  }
  return absl::OkStatus();
}

absl::Status Admission::enter(int sequences, int64_t tokens, int64_t max_positions,
                              AdmissionTicket* ticket) {
  absl::Status status = check(sequences, tokens, max_positions);
  if (!status.ok()) return status;
  const bool waits = would_wait(sequences);
  *ticket = {.sequences = sequences, .tokens = tokens, .waits = waits};
  ++live_requests_;
  live_sequences_ += sequences;
  if (waits) {
    ++waiting_requests_;
    waiting_tokens_ += tokens;
  }
  return absl::OkStatus();
}

void Admission::left_queue(AdmissionTicket* ticket) {
  if (!ticket->waits) return;
  ticket->waits = false;
  --waiting_requests_;
  waiting_tokens_ -= ticket->tokens;
  CHECK(waiting_requests_ >= 0 && waiting_tokens_ >= 0);
}

void Admission::ended(const AdmissionTicket& ticket) {
  CHECK(!ticket.waits);
  --live_requests_;
  live_sequences_ -= ticket.sequences;
  CHECK(live_requests_ >= 0 && live_sequences_ >= 0);
}

absl::Status Admission::check_fits(int64_t max_positions) const {
  const int64_t needed = (max_positions + limits_.block_size - 1) / limits_.block_size;
  if (needed > limits_.kv_blocks) {
    return absl::ResourceExhaustedError(
        absl::StrCat("prompt and max_tokens need ", needed, " KV blocks of ", limits_.block_size,
                     " positions but the cache has ", limits_.kv_blocks));
  }
  if (needed > limits_.max_blocks_per_sequence) {
    return absl::ResourceExhaustedError(
        absl::StrCat("prompt and max_tokens need ", needed, " KV blocks of ", limits_.block_size,
                     " positions but one sequence may hold ", limits_.max_blocks_per_sequence));
  }
  return absl::OkStatus();
}

}  // namespace brigade::runtime
