// A request while the engine serves it, with its sequences: what the scheduler knows, what has been
// committed, and the stream to the client. Built by the submitting thread, then the step thread's
// alone (the stream aside, which both ends share).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/sequence_speculation.h"
#include "runtime/model/row_output.h"
#include "runtime/request/request.h"
#include "runtime/sampling/policy.h"
#include "runtime/scheduler/admission.h"
#include "runtime/scheduler/scheduled_sequence.h"
#include "runtime/speculative/draft_counts.h"
#include "runtime/stream/commit.h"
#include "runtime/stream/token_stream.h"
#include "runtime/tokenizer/tokenizer.h"

namespace brigade::runtime {

struct Sequence : ScheduledSequence {
  Sequence(const GenerateRequest& asked, int sample, std::span<const int32_t> eos_tokens,
           const Tokenizer* tokenizer);
  SequenceOutput output;
  int target_passes = 0;
  DraftCounts draft_counts;
  std::unique_ptr<SequenceSpeculation> speculation;  // null: off
};

struct ActiveRequest : ScheduledRequest {
  // Everything its sequences will ever hold is reserved here: a decode step allocates nothing.
  ActiveRequest(GenerateRequest request, std::shared_ptr<TokenStream> client,
                std::span<const int32_t> eos_tokens, const Tokenizer* tokenizer, int block_size,
                absl::Time now);

  Sequence& sequence(size_t index) { return *owned[index]; }
  // Gives every sequence what speculation keeps, if it is wanted.
  void add_speculation(const EngineConfig& config, int vocab, int max_law_entries);
  // All sequences have ended and none is part of a step in flight.
  bool done() const;

  const GenerateRequest asked;
  AdmissionTicket ticket;  // filled in by the inbox
  const std::shared_ptr<TokenStream> stream;
  std::vector<std::unique_ptr<Sequence>> owned;
  int ended = 0;  // sequences
  bool speculates = false;
  absl::Time started_at = absl::InfiniteFuture();  // first blocks
  absl::Time first_token_at = absl::InfiniteFuture();
};

// For the sequence's next token, with everything committed so far taken into account.
PolicyInput policy_input(const ActiveRequest& request, const Sequence& sequence);

// What the step thread needs of the rows of the sequence's next step.
RowOutput row_output(const ActiveRequest& request, const Sequence& sequence);

// KV positions one sequence of `request` can come to need: the last token is never read back.
int64_t max_kv_positions(const GenerateRequest& request);

}  // namespace brigade::runtime
