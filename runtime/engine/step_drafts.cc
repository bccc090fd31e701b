// Drafts of a step: who gets how many, and what their verification commits.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "runtime/engine/step_loop.h"

namespace brigade::runtime {
namespace {

// Between two looks at where rows go: while drafts are verified, and while all drafters rest.
constexpr int kStepsBetweenLayers = 4, kRestingStepsBetweenLayers = 64;

}  // namespace

// Lengthens the decodes of a planned step by drafts. What that takes is time that the step waits
// for drafts: nothing here waits for a drafter.
void StepLoop::plan_drafts(StepPlan* plan, absl::Time now) {
  if (speculating_ == 0) return;
  const absl::Time began = clock_();
  drafts_->collect(now);
  asks_.clear();
  asking_.clear();
  for (size_t i = 0; i < plan->slices.size(); ++i)
    ask_for_drafts(plan->slices[i], static_cast<int>(i));
  depths_.assign(asks_.size(), 0);
  depth_control_.choose(asks_, plan->rows - static_cast<int>(asks_.size()),
                        scheduler_.spare_rows(*plan), depths_);
  int deepest = 0;
  for (size_t i = 0; i < asks_.size(); ++i) {
    if (depths_[i] == 0) continue;
    StepSlice& slice = plan->slices[static_cast<size_t>(asking_[i])];
    const auto* sequence = static_cast<Sequence*>(slice.sequence);
    draft_tokens_.clear();
    for (const DraftedToken& draft :
         sequence->speculation->drafts.tokens().first(static_cast<size_t>(depths_[i]))) {
      draft_tokens_.push_back(draft.token);
    }
    scheduler_.add_drafts(plan, &slice, draft_tokens_);
    deepest = std::max(deepest, slice.drafts);
  }
  counts_.draft_passes += static_cast<int64_t>(asks_.size());
  counts_.resting_sequences = static_cast<int>(
      std::count_if(asks_.begin(), asks_.end(), [](const auto& ask) { return *ask.want == 0; }));
  note_wait(*plan, deepest, clock_() - began);
}

// Every sequence of a step waits for the drafts of all.
void StepLoop::note_wait(const StepPlan& plan, int deepest, absl::Duration wait) {
  counts_.drafts.wait += wait;
  depth_control_.cost().observe_wait(deepest, absl::ToDoubleSeconds(wait));
  for (const int index : asking_) {
    const StepSlice& slice = plan.slices[static_cast<size_t>(index)];
    static_cast<Sequence*>(slice.sequence)->draft_counts.wait += wait;
  }
}

void StepLoop::ask_for_drafts(const StepSlice& slice, int index) {
  auto* sequence = static_cast<Sequence*>(slice.sequence);
  SequenceSpeculation* speculation = sequence->speculation.get();
  if (!slice.decode || speculation == nullptr) return;
  const auto& request = *static_cast<ActiveRequest*>(sequence->request);
  open_drafter(request, sequence);
  // The last token's KV is never needed, so that it need not be drafted.
  const int useful = request.max_positions - static_cast<int>(sequence->tokens.size());
  const int wanted = std::clamp(useful, 0, std::min(speculation->want, speculation->fixed));
  // A drafter that rests has been told so, and costs nothing until it is asked again.
  if (wanted > 0 || speculation->asked != 0) {
    if (speculation->drafter != nullptr) {
      speculation->drafter->draft(sequence->tokens, wanted, &speculation->drafts);
    }
    speculation->asked = wanted;
  }
  asks_.push_back({.mode = speculation->mode,
                   .fixed = speculation->fixed,
                   .available = wanted > 0 ? speculation->drafts.size() : 0,
                   .survival = &speculation->survival,
                   .want = &speculation->want});
  asking_.push_back(index);
}

// As soon as its drafts may be wanted, and while its prompt is still being computed if possible:
// the drafter's own work on the prompt then falls into the same time.
void StepLoop::open_drafter(const ActiveRequest& request, Sequence* sequence) {
  SequenceSpeculation* speculation = sequence->speculation.get();
  if (speculation == nullptr || speculation->opened || speculation->want == 0) return;
  speculation->opened = true;
  speculation->drafter =
      drafts_->open(request.asked, sequence->sample_index, eos_tokens_, sequence->tokens);
}

// Takes verified tokens into one sequence.
class StepLoop::Committing final : public Continuation {
 public:
  Committing(StepLoop* loop, ActiveRequest* request, Sequence* sequence,
             std::span<const DraftedToken> drafts, absl::Time now)
      : loop_(*loop), request_(request), sequence_(sequence), drafts_(drafts), now_(now) {}

  PolicyInput policy_input() const override { return runtime::policy_input(*request_, *sequence_); }
  // That of the token to be drawn, so that preemption and resumption draw the same.
  uint32_t position() const override { return static_cast<uint32_t>(sequence_->tokens.size()); }

  bool commit(int32_t token, std::span<const float> logits) override {
    // Verification only goes on after an accepted draft, whose KV this step has written.
    if (committed_ > 0) loop_.scheduler_.draft_accepted(sequence_);
    // Counted before the token's event, which may be the last.
    if (committed_ < drafts_.size() && drafts_[committed_].token == token) {
      sequence_->draft_counts.note_accepted(committed_);
      loop_.counts_.drafts.note_accepted(committed_);
    }
    ++committed_;
    std::optional<TokenLogprob> logprob;
    const int logprobs = request_->asked.sampling.logprobs;
    if (logprobs >= 0) logprob = log_probability(logits, token, logprobs);
    TokenEvent event = sequence_->output.commit_token(token, std::move(logprob));
    ++loop_.counts_.generated_tokens;
    if (request_->first_token_at == absl::InfiniteFuture()) request_->first_token_at = now_;
    loop_.scheduler_.append(sequence_, token);
    loop_.deliver(request_, sequence_, std::move(event), now_);
    return !sequence_->output.finished();
  }

 private:
  StepLoop& loop_;
  ActiveRequest* const request_;
  Sequence* const sequence_;
  const std::span<const DraftedToken> drafts_;
  const absl::Time now_;
  size_t committed_ = 0;
};

// False when the whole request has ended with an error.
bool StepLoop::commit_rows(ActiveRequest* request, Sequence* sequence, const VerifyInput& input,
                           absl::Time now, Verdict* verdict) {
  KeyedChance chance({.seed = request->asked.sampling.seed,
                      .sample_index = static_cast<uint32_t>(sequence->sample_index)});
  ++sequence->target_passes;
  sequence->draft_counts.note_drafted(input.drafts);
  counts_.drafts.note_drafted(input.drafts);
  Committing committing(this, request, sequence, input.drafts, now);
  *verdict = verify(input, &verify_scratch_, &chance, &committing);
  if (verdict->outcome != VerifyOutcome::kNoCandidate) return true;
  end_request(request, FinishReason::kError,
              absl::InvalidArgumentError(
                  "sampling: allowed_tokens, banned_tokens and min_tokens together leave no token "
                  "to choose"));
  return false;
}

// The sequence's next tokens, from its last known token's row at `first_index` and those of its
// drafts.
void StepLoop::verify_slice(const StepSlice& slice, const Microbatch& microbatch, int first_index,
                            absl::Time now) {
  auto* request = static_cast<ActiveRequest*>(slice.sequence->request);
  auto* sequence = static_cast<Sequence*>(slice.sequence);
  SequenceSpeculation* speculation = sequence->speculation.get();
  VerifyInput input{
      .rule = accept_rule(request->asked.sampling), .rows = {}, .drafts = {}, .run_ahead = nullptr};
  if (slice.drafts > 0) {
    // A draft whose own row lacked an expert can still be judged by the row before it.
    const int tested = slice.parked_drafts > 0 ? slice.drafts - slice.parked_drafts : slice.drafts;
    if (speculation->drafts.size() == slice.drafts) {
      speculation->drafter->run_ahead(sequence->tokens, &speculation->drafts);
    }
    const std::span<const DraftedToken> drafts = speculation->drafts.tokens();
    input.drafts = drafts.first(static_cast<size_t>(tested));
    if (drafts.size() > static_cast<size_t>(tested)) {
      input.run_ahead = &drafts[static_cast<size_t>(tested)];
    }
  }
  rows_.clear();
  for (size_t i = 0; i <= input.drafts.size(); ++i) {
    rows_.push_back(target_row(*microbatch.model, microbatch.builder.batch(),
                               first_index + static_cast<int>(i)));
  }
  input.rows = rows_;
  Verdict verdict;
  commit_rows(request, sequence, input, now, &verdict);
  if (slice.drafts > 0) note_verdict(slice, verdict);
}

void StepLoop::note_verdict(const StepSlice& slice, const Verdict& verdict) {
  auto* sequence = static_cast<Sequence*>(slice.sequence);
  SequenceSpeculation& speculation = *sequence->speculation;
  ++counts_.verify_passes;
  depth_control_.record(&speculation.survival, verdict.tested, verdict.accepted);
  if (verdict.outcome == VerifyOutcome::kNotFinite) {
    // The row that the first look did not cover: after an accepted draft.
    scheduler_.draft_accepted(sequence);
    row_not_finite(slice, /*again=*/true);
  }
}

// Steps without drafts count too: they are what drafts are compared with.
void StepLoop::note_time(const Microbatch& microbatch) {
  const absl::Duration time = clock_() - microbatch.began;
  counts_.draft_step_time += time;
  if (!microbatch.model->parked_rows().empty()) return;
  const ExpertUse* use = microbatch.model->expert_use();
  depth_control_.cost().observe_step(microbatch.plan.rows, use == nullptr ? 0 : use->slowest(),
                                     absl::ToDoubleSeconds(time));
  const std::vector<StepSlice>& slices = microbatch.plan.slices;
  if (std::any_of(slices.begin(), slices.end(), [](const auto& s) { return s.drafts > 0; })) {
    ++counts_.verify_steps;
    counts_.distinct_experts += use == nullptr ? 0 : use->distinct();
    counts_.slowest_experts += use == nullptr ? 0 : use->slowest();
  }
  if (expert_demand_.has_value()) follow_routing();
}

// What rows are going to wake, a layer now and then: it costs rows x experts.
void StepLoop::follow_routing() {
  const int between =
      depth_control_.decision().level > 0 ? kStepsBetweenLayers : kRestingStepsBetweenLayers;
  if (expert_demand_->known() && ++steps_since_routing_ < between) return;
  steps_since_routing_ = 0;
  const int layer = expert_demand_->next_layer();
  int64_t rows = 0;
  std::fill(layer_counts_.begin(), layer_counts_.end(), 0);
  for (const Microbatch& microbatch : microbatches_) {
    const ExpertUse& use = *microbatch.model->expert_use();
    rows += use.tokens();
    const std::vector<int64_t>& counts = use.rows()[static_cast<size_t>(layer)];
    for (size_t expert = 0; expert < counts.size(); ++expert)
      layer_counts_[expert] += counts[expert];
  }
  const std::span<const int32_t> holders = microbatches_[0].model->expert_use()->holders(layer);
  if (expert_demand_->take_layer(layer_counts_, rows, holders)) {
    depth_control_.cost().set_expected_experts(expert_demand_->expected());
  }
}

// Tells the drafter what a pass has committed, with drafts or without.
void StepLoop::tell_drafter(const Sequence& sequence) {
  if (sequence.speculation == nullptr || sequence.speculation->drafter == nullptr) return;
  if (sequence.speculation->asked == 0) return;  // it rests
  sequence.speculation->drafter->committed(sequence.tokens);
}

}  // namespace brigade::runtime
