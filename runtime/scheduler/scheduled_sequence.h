// What the scheduler knows of a request and its sequences: token ids, KV blocks and where each
// stands. The engine's own request and sequence derive from these. Step thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "runtime/scheduler/kv_blocks.h"

namespace brigade::runtime {

struct ScheduledRequest;

enum class SequenceState {
  kQueued,     // never ran; sequences 1.. of a request stay here until they part from sequence 0
  kRunning,    // holds blocks; takes part in steps
  kPreempted,  // gave its blocks back; its tokens will be computed again
  kEnded,
};

struct ScheduledSequence {
  ScheduledRequest* request = nullptr;
  int sample_index = 0;
  std::vector<int32_t> tokens;  // prompt and what has been committed; never shrinks
  std::vector<int32_t> drafts;  // that the step being planned or in flight verifies after them
  std::vector<int> blocks;      // logical to physical
  size_t own_blocks = 0;        // of those, without what drafts took for this step
  int computed = 0;             // positions whose KV is in the blocks
  int committed_blocks = 0;     // leading blocks that went through the prefix table
  PrefixChain chain = 0;        // of those
  SequenceState state = SequenceState::kQueued;
  bool in_flight = false;  // part of a step that has not ended; its blocks must stay
  bool run_alone = false;  // its next step holds nothing else
  int preemptions = 0;
  int cached_tokens = 0;  // of the prompt, found in the prefix table at the first start
  int64_t last_step = 0;  // number of the last step it took part in
  absl::Time paused_since = absl::InfiniteFuture();  // no room in the stream since then
  int parks = 0;  // steps in a row that left it where it was: nobody held an expert it needs
  absl::Time retry_at = absl::InfinitePast();  // parked: takes part in no step before

  int remaining() const { return static_cast<int>(tokens.size()) - computed; }
  bool paused() const { return paused_since != absl::InfiniteFuture(); }
  bool parked() const { return parks > 0; }
};

struct ScheduledRequest {
  int64_t number = 0;  // age: set by the scheduler, ascending
  absl::Time submitted = absl::InfinitePast();
  absl::Time deadline = absl::InfiniteFuture();
  PrefixSalt salt;
  bool use_prefix_cache = true;
  bool tainted = false;         // its KV must never be shared
  int max_positions = 0;        // KV positions a sequence can come to need
  size_t room = 0;              // events the stream takes now; the owner refreshes it
  size_t events_in_flight = 0;  // events that steps in flight will push
  bool started = false;
  bool forked = false;                        // sequences 1.. have parted from sequence 0
  std::vector<ScheduledSequence*> sequences;  // owned by the engine's request
};

// Older first: by request, then by sample.
inline bool older(const ScheduledSequence& a, const ScheduledSequence& b) {
  if (a.request->number != b.request->number) return a.request->number < b.request->number;
  return a.sample_index < b.sample_index;
}

}  // namespace brigade::runtime
