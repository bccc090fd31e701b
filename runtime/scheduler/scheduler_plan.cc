// How one step is put together: decodes first, then prefill chunks in what rows are left, each in
// the order of who waited longest, so that neither a flood of streams nor a long prompt starves the
// other.
#include <algorithm>

#include "kernels/core/check.h"
#include "runtime/scheduler/scheduler.h"

namespace brigade::runtime {
namespace {

bool waited_longer(const ScheduledSequence* a, const ScheduledSequence* b) {
  if (a->last_step != b->last_step) return a->last_step < b->last_step;
  return older(*a, *b);
}

}  // namespace

int Scheduler::events_of_step(const ScheduledSequence& sequence) const {
  if (sequence.run_alone) return 0;  // ends with an error, which always has room
  const ScheduledRequest& request = *sequence.request;
  return request.forked ? 1 : static_cast<int>(request.sequences.size());
}

bool Scheduler::has_room(ScheduledSequence* sequence, absl::Time now) {
  const ScheduledRequest& request = *sequence->request;
  const size_t wanted = request.events_in_flight + static_cast<size_t>(events_of_step(*sequence));
  if (request.room >= wanted) {
    sequence->paused_since = absl::InfiniteFuture();
    return true;
  }
  if (!sequence->paused()) {
    sequence->paused_since = now;
    ++counters_.paused_for_reader;
  }
  return false;
}

// Sorts the sequences that can run now into decodes_ and prefills_.
void Scheduler::sort_ready(absl::Time now) {
  decodes_.clear();
  prefills_.clear();
  for (ScheduledSequence* sequence : running_) {
    if (sequence->in_flight || sequence->run_alone || sequence->remaining() == 0) continue;
    if (sequence->retry_at > now) continue;
    const bool decode = sequence->remaining() == 1;
    const bool ends = sequence->remaining() <= config_.prefill_chunk;
    if (ends && !has_room(sequence, now)) continue;
    (decode ? decodes_ : prefills_).push_back(sequence);
  }
  std::sort(decodes_.begin(), decodes_.end(), waited_longer);
  std::sort(prefills_.begin(), prefills_.end(), waited_longer);
}

// What decodes leave to prefill while any waits.
Scheduler::Budget Scheduler::rows_kept_for_prefill(const Budget& budget) const {
  if (prefills_.empty()) return {};
  if (budget.rows <= 1 || budget.sequences <= 1 || budget.logit_rows <= 1) {
    // A step has room for only one side: they take turns.
    const bool prefill = decodes_.empty() || waited_longer(prefills_[0], decodes_[0]);
    return prefill ? budget : Budget{};
  }
  int wanted = 0;
  for (const ScheduledSequence* sequence : prefills_) {
    wanted += std::min(sequence->remaining(), config_.prefill_chunk);
    if (wanted >= config_.prefill_reserve) break;
  }
  return {std::min({wanted, config_.prefill_reserve, budget.rows - 1}), 1, 1};
}

void Scheduler::plan_step(absl::Time now, StepPlan* plan) {
  plan->clear();
  plan->cluster_changes = cluster_changes_;
  if (!plan_alone(now, plan)) {
    sort_ready(now);
    const Budget whole{config_.max_rows, config_.max_step_sequences, config_.max_logit_rows};
    const Budget kept = rows_kept_for_prefill(whole);
    // Microbatches share the decodes evenly, so that each has work while the others wait.
    const int share = (running_sequences() + config_.microbatches - 1) / config_.microbatches;
    Budget budget{whole.rows - kept.rows, std::min(share, whole.sequences - kept.sequences),
                  whole.logit_rows - kept.logit_rows};
    for (ScheduledSequence* sequence : decodes_) {
      if (budget.rows == 0 || budget.sequences == 0 || budget.logit_rows == 0) break;
      if (plan_slice(sequence, 1, &budget, plan)) {
        plan->slices.back().decode = true;
        ++plan->decodes;
      }
    }
    budget = {whole.rows - plan->rows, whole.sequences - plan->decodes,
              whole.logit_rows - plan->logit_rows};
    for (ScheduledSequence* sequence : prefills_) {
      if (budget.rows == 0 || budget.sequences == 0) break;
      if (plan_slice(sequence, config_.prefill_chunk, &budget, plan)) ++plan->prefills;
    }
  }
  if (plan->empty()) return;
  ++counters_.steps;
  if (plan->decodes > 0 && plan->prefills > 0) ++counters_.mixed_steps;
  counters_.max_sequences_in_step =
      std::max(counters_.max_sequences_in_step, static_cast<int>(plan->slices.size()));
  for (StepSlice& slice : plan->slices) slice.sequence->last_step = counters_.steps;
}

bool Scheduler::plan_alone(absl::Time now, StepPlan* plan) {
  const auto at = std::find_if(running_.begin(), running_.end(), [now](const auto* s) {
    return s->run_alone && !s->in_flight && s->retry_at <= now;
  });
  if (at == running_.end()) return false;
  Budget budget{1, 1, 1};
  return plan_slice(*at, 1, &budget, plan);
}

// Adds the sequence's next rows. False, with nothing changed but perhaps victims preempted, when it
// cannot run in this step.
bool Scheduler::plan_slice(ScheduledSequence* sequence, int most_rows, Budget* budget,
                           StepPlan* plan) {
  // It may have lost its blocks to one planned before it.
  if (sequence->state != SequenceState::kRunning) return false;
  int count = std::min({sequence->remaining(), most_rows, budget->rows});
  bool wants_logits = count == sequence->remaining();
  if (wants_logits && budget->logit_rows == 0) {
    if (--count == 0) return false;
    wants_logits = false;
  }
  ScheduledRequest* request = sequence->request;
  const int events = wants_logits ? events_of_step(*sequence) : 0;
  // Another sequence of the request may just have been promised the last room.
  if (request->room < request->events_in_flight + static_cast<size_t>(events)) return false;
  if (!make_writable(sequence, sequence->computed, count, plan)) return false;
  plan->slices.push_back({.sequence = sequence,
                          .start = sequence->computed,
                          .count = count,
                          .wants_logits = wants_logits,
                          .events = events});
  sequence->in_flight = true;
  request->events_in_flight += static_cast<size_t>(events);
  plan->rows += count;
  budget->rows -= count;
  --budget->sequences;
  if (wants_logits) {
    ++plan->logit_rows;
    --budget->logit_rows;
  }
  return true;
}

// Sees to it that positions [first, first + count) have blocks that nobody else reads. Only the
// first block can be shared: a partial one, after sequences of a request have parted.
bool Scheduler::make_writable(ScheduledSequence* sequence, int first, int count, StepPlan* plan) {
  const int size = blocks_->block_size();
  const int last_block = (first + count - 1) / size;
  CHECK(last_block <= static_cast<int>(sequence->blocks.size()));
  if (last_block == static_cast<int>(sequence->blocks.size())) {
    const int block = allocate_for(*sequence);
    if (block < 0) return false;
    sequence->blocks.push_back(block);
  }
  const int index = first / size;
  const int shared = sequence->blocks[index];
  if (blocks_->writable(shared)) return true;
  const int own = allocate_for(*sequence);
  if (blocks_->writable(shared)) {  // the other holder was a victim, even if that freed no block
    if (own >= 0) blocks_->release(own);
    return true;
  }
  if (own < 0) return false;
  plan->copies.push_back({.from = shared, .to = own});
  sequence->blocks[index] = own;
  return true;
}

void Scheduler::step_ended(StepPlan* plan, bool computed, absl::Time now) {
  for (const BlockCopy& copy : plan->copies) blocks_->release(copy.from);
  for (const StepSlice& slice : plan->slices) {
    ScheduledSequence* sequence = slice.sequence;
    CHECK(sequence->in_flight);
    sequence->in_flight = false;
    sequence->request->events_in_flight -= static_cast<size_t>(slice.events);
    if (sequence->state == SequenceState::kEnded) {
      give_blocks_back(sequence);
    } else if (computed && slice.parked) {
      park(sequence, /*at_once=*/plan->cluster_changes != cluster_changes_, now);
    } else if (computed) {
      sequence->parks = 0;
      sequence->retry_at = absl::InfinitePast();
      sequence->computed += slice.count - slice.drafts;
      if (!slice.decode) counters_.prompt_rows += slice.count;
    }
  }
}

}  // namespace brigade::runtime
