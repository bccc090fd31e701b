// What becomes of a step's output: rows that are not finite, sequences that part after a shared
// prompt, committed tokens, and the end of sequences and requests.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "runtime/engine/step_loop.h"

namespace brigade::runtime {
namespace {

void add_draft_counts(const DraftCounts& counts, SequenceUsage* usage) {
  usage->drafted_tokens = static_cast<int>(counts.drafted);
  usage->accepted_drafts = static_cast<int>(counts.accepted);
  usage->drafted_by_position = by_position(counts, counts.drafted_at);
  usage->accepted_by_position = by_position(counts, counts.accepted_at);
  usage->run_ahead_drafts = static_cast<int>(counts.run_ahead);
  usage->early_drafts = static_cast<int>(counts.early);
  usage->draft_wait = counts.wait;
}

}  // namespace

void StepLoop::step_failed(Microbatch* microbatch, const absl::Status& why) {
  StepPlan& plan = microbatch->plan;
  scheduler_.step_ended(&plan, /*computed=*/false, absl::Now());
  const absl::Status status(why.code(),
                            absl::StrCat("the step failed: ", std::string(why.message())));
  for (const StepSlice& slice : plan.slices) {
    auto* request = static_cast<ActiveRequest*>(slice.sequence->request);
    something_ended_ = true;
    if (request->ended == static_cast<int>(request->owned.size())) continue;
    end_request(request, FinishReason::kError, status);
  }
  plan.clear();
}

void StepLoop::step_done(Microbatch* microbatch, absl::Time now) {
  StepPlan& plan = microbatch->plan;
  mark_parked(microbatch);
  // Drafts that have come by now count as made before the verdicts that follow.
  if (speculating_ > 0) drafts_->collect(now);
  scheduler_.step_ended(&plan, /*computed=*/true, now);
  int next_index = 0;
  for (const StepSlice& slice : plan.slices) {
    // Ended by its client or its deadline while the step ran.
    if (slice.sequence->state == SequenceState::kEnded) something_ended_ = true;
    if (!slice.wants_logits) continue;
    const int index = next_index;
    next_index += 1 + slice.drafts;
    if (!slice.parked && slice.sequence->state != SequenceState::kEnded) {
      take_rows(slice, *microbatch, index, now);
    }
    if (slice.drafts > 0) scheduler_.drafts_done(slice.sequence);
  }
  plan.clear();
}

// A row that lacked an expert takes its whole slice out of the step; one of a draft only itself and
// the drafts after it.
void StepLoop::mark_parked(Microbatch* microbatch) {
  const std::span<const int32_t> rows = microbatch->model->parked_rows();
  auto row = rows.begin();
  int end = 0;
  for (StepSlice& slice : microbatch->plan.slices) {
    end += slice.count;
    for (; row != rows.end() && *row < end; ++row) {
      if (*row < end - slice.drafts) slice.parked = true;
      slice.parked_drafts = std::max(slice.parked_drafts, std::min(end - *row, slice.drafts));
    }
  }
}

void StepLoop::take_rows(const StepSlice& slice, const Microbatch& microbatch, int index,
                         absl::Time now) {
  auto* request = static_cast<ActiveRequest*>(slice.sequence->request);
  auto* sequence = static_cast<Sequence*>(slice.sequence);
  const TargetRow row = target_row(*microbatch.model, microbatch.builder.batch(), index);
  const bool finite = row.usable();
  if (!finite || sequence->run_alone) {
    row_not_finite(slice, /*again=*/!finite);
    return;
  }
  scheduler_.confirm(sequence);
  if (!request->forked) {
    request->forked = true;
    fork_siblings(request, *sequence);
    const VerifyInput plain{.rule = accept_rule(request->asked.sampling),
                            .rows = {&row, 1},
                            .drafts = {},
                            .run_ahead = nullptr};
    Verdict verdict;
    for (size_t i = 1; i < request->owned.size(); ++i) {
      if (!commit_rows(request, request->owned[i].get(), plain, now, &verdict)) return;
    }
  }
  verify_slice(slice, microbatch, index, now);
  tell_drafter(*sequence);
}

// The first time the row runs once more alone, which tells a bad model from a bad neighbourhood;
// then the request ends. Nothing is ever drawn from such a row and its KV is never shared.
void StepLoop::row_not_finite(const StepSlice& slice, bool again) {
  auto* request = static_cast<ActiveRequest*>(slice.sequence->request);
  ++counts_.nonfinite_rows;
  request->tainted = true;
  if (!slice.sequence->run_alone) {
    scheduler_.repeat_alone(slice.sequence);
    return;
  }
  const int position = slice.start + slice.count - 1;
  end_request(request, FinishReason::kError,
              absl::InternalError(absl::StrCat("non-finite logits after position ", position,
                                               " of sequence ", slice.sequence->sample_index,
                                               "; computed again alone the row was ",
                                               again ? "non-finite too" : "finite")));
}

void StepLoop::fork_siblings(ActiveRequest* request, const Sequence& first) {
  for (size_t i = 1; i < request->owned.size(); ++i) {
    scheduler_.fork(first, request->owned[i].get());
  }
}

// Pushes an event; one with a finish also ends the sequence, and the last of those the stream.
void StepLoop::deliver(ActiveRequest* request, Sequence* sequence, TokenEvent event,
                       absl::Time now) {
  const bool ends = event.finish != FinishReason::kNone;
  if (ends) {
    event.usage.cached_prompt_tokens = std::min(sequence->cached_tokens, event.usage.prompt_tokens);
    event.usage.preemptions = sequence->preemptions;
    event.usage.target_passes = sequence->target_passes;
    add_draft_counts(sequence->draft_counts, &event.usage);
    event.queued = std::min(request->started_at, now) - request->submitted;
    event.first_token = std::min(request->first_token_at, now) - request->submitted;
    event.total = now - request->submitted;
  }
  const absl::Status why = event.error;
  request->stream->push(std::move(event));
  if (!ends) return;
  scheduler_.end(sequence);
  something_ended_ = true;
  if (++request->ended < static_cast<int>(request->owned.size())) return;
  count_end(why);
  request->stream->close();
}

void StepLoop::end_request(ActiveRequest* request, FinishReason reason, const absl::Status& why) {
  const absl::Time now = absl::Now();
  for (const auto& sequence : request->owned) {
    if (sequence->output.finished()) continue;
    deliver(request, sequence.get(), sequence->output.finish(reason, why), now);
  }
}

// Every accepted request is counted once, when its last sequence ends.
void StepLoop::count_end(const absl::Status& why) {
  if (why.ok()) {
    ++counts_.finished;
  } else if (absl::IsCancelled(why)) {
    ++counts_.cancelled;
  } else if (absl::IsDeadlineExceeded(why)) {
    ++counts_.expired;
  } else {
    ++counts_.failed;
  }
}

void StepLoop::forget_done() {
  if (!something_ended_) return;
  something_ended_ = false;
  for (size_t i = 0; i < active_.size();) {
    ActiveRequest* request = active_[i].get();
    if (!request->done()) {
      ++i;
      continue;
    }
    scheduler_.leave(request);
    speculating_ -= request->speculates;
    if (speculating_ == 0) counts_.resting_sequences = 0;
    inbox_->left_queue(&request->ticket);
    inbox_->ended(request->ticket);
    std::swap(active_[i], active_.back());
    active_.pop_back();
  }
}

void StepLoop::end_all(const absl::Status& why) {
  take_arrivals();
  for (const auto& request : active_) {
    if (request->ended < static_cast<int>(request->owned.size())) {
      end_request(request.get(), FinishReason::kError, why);
    }
  }
  for (Microbatch& microbatch : microbatches_) {
    if (microbatch.busy) scheduler_.step_ended(&microbatch.plan, /*computed=*/false, absl::Now());
    microbatch.busy = false;
  }
  forget_done();
  publish(absl::Now());
}

}  // namespace brigade::runtime
