// Draft rows of a step: how many fit, and what of them stays.
#include <algorithm>

#include "kernels/core/check.h"
#include "runtime/scheduler/scheduler.h"

namespace brigade::runtime {

int Scheduler::spare_rows(const StepPlan& plan) const {
  return std::max(0,
                  std::min(config_.max_rows - plan.rows, config_.max_logit_rows - plan.logit_rows));
}

void Scheduler::add_drafts(StepPlan* plan, StepSlice* slice, std::span<const int32_t> drafts) {
  ScheduledSequence* sequence = slice->sequence;
  ScheduledRequest* request = sequence->request;
  CHECK(slice->decode && slice->wants_logits && slice->drafts == 0 && sequence->in_flight);
  sequence->drafts.clear();
  sequence->own_blocks = sequence->blocks.size();
  if (!request->forked || sequence->run_alone) return;
  CHECK(request->room >= request->events_in_flight);
  const int end = slice->start + slice->count;
  int count = std::min(
      {static_cast<int>(drafts.size()), spare_rows(*plan),
       static_cast<int>(std::min<size_t>(request->room - request->events_in_flight, drafts.size())),
       request->max_positions - end});
  // Drafts take only free blocks, and leave one to each sequence that runs.
  const int held = static_cast<int>(sequence->blocks.size());
  const int most_blocks = held + std::max(0, blocks_->available() - running_sequences());
  count = std::min(count, most_blocks * blocks_->block_size() - end);
  if (count <= 0) return;
  const int wanted = blocks_->blocks_for(end + count);
  while (static_cast<int>(sequence->blocks.size()) < wanted) {
    sequence->blocks.push_back(blocks_->allocate());
  }
  sequence->drafts.assign(drafts.begin(), drafts.begin() + count);
  slice->drafts = count;
  slice->count += count;
  slice->events += count;
  request->events_in_flight += static_cast<size_t>(count);
  plan->rows += count;
  plan->logit_rows += count;
}

void Scheduler::draft_accepted(ScheduledSequence* sequence) {
  CHECK(sequence->state == SequenceState::kRunning && sequence->remaining() == 1);
  ++sequence->computed;
}

void Scheduler::drafts_done(ScheduledSequence* sequence) {
  sequence->drafts.clear();
  if (sequence->state != SequenceState::kRunning || sequence->in_flight) return;
  const size_t needed =
      std::max(sequence->own_blocks, static_cast<size_t>(blocks_->blocks_for(sequence->computed)));
  while (sequence->blocks.size() > needed) {
    blocks_->release(sequence->blocks.back());
    sequence->blocks.pop_back();
  }
}

}  // namespace brigade::runtime
