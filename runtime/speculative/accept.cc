#include "runtime/speculative/accept.h"

#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

struct RowChoice {
  int32_t token = 0;
  bool accepted = false;
};

// max(0, p - q), renormalised. False when rounding left nothing: p and q are equal then.
bool make_residual(const Distribution& target, const DraftedToken& draft, Distribution* residual) {
  residual->tokens.clear();
  residual->probabilities.clear();
  for (size_t i = 0; i < target.tokens.size(); ++i) {
    const double left = target.probabilities[i] - draft_probability(draft, target.tokens[i]);
    if (!(left > 0)) continue;
    residual->tokens.push_back(target.tokens[i]);
    residual->probabilities.push_back(left);
  }
  return normalise(residual->probabilities);
}

// The token that follows, from scratch->target. `draft` may be null.
RowChoice choose(AcceptRule rule, const DraftedToken* draft, uint32_t position,
                 VerifyScratch* scratch, Chance* chance) {
  const Distribution& target = scratch->target;
  if (draft == nullptr || rule != AcceptRule::kRejection) {
    const int32_t token = chance->pick(target, position, RandomPurpose::kGumbel);
    return {token, draft != nullptr && token == draft->token};
  }
  const double p = probability_in(target.tokens, target.probabilities, draft->token);
  const double q = draft_probability(*draft, draft->token);
  if (chance->accept(p, q, position)) return {draft->token, true};
  const bool some_left = make_residual(target, *draft, &scratch->residual);
  const Distribution& rest = some_left ? scratch->residual : target;
  return {chance->pick(rest, position, RandomPurpose::kResidual), false};
}

}  // namespace

bool accepts(double u, double p, double q) { return u * q < p; }

AcceptRule accept_rule(const SamplingParams& params) {
  if (params.temperature == 0) return AcceptRule::kGreedy;
  return params.seed_from_client ? AcceptRule::kCoupled : AcceptRule::kRejection;
}

Verdict verify(const VerifyInput& input, VerifyScratch* scratch, Chance* chance,
               Continuation* sequence) {
  CHECK(input.rows.size() == input.drafts.size() + 1);
  Verdict verdict;
  for (size_t row = 0;; ++row) {
    const bool last = row == input.drafts.size();
    const DraftedToken* draft = last ? input.run_ahead : &input.drafts[row];
    // A token without a law has none to be tested against; the form says nothing about its value.
    if (draft != nullptr && draft->form == LawForm::kNone && input.rule == AcceptRule::kRejection) {
      draft = nullptr;
    }
    const TargetRow& target = input.rows[row];
    if (!target_law(target, sequence->policy_input(), &scratch->policy, &scratch->target)) {
      verdict.outcome = target.usable() ? VerifyOutcome::kNoCandidate : VerifyOutcome::kNotFinite;
      return verdict;
    }
    const RowChoice choice = choose(input.rule, draft, sequence->position(), scratch, chance);
    ++verdict.committed;
    if (last) {
      verdict.run_ahead_tested = draft != nullptr;
      verdict.run_ahead_accepted = choice.accepted;
    } else if (draft != nullptr) {
      ++verdict.tested;
      verdict.accepted += choice.accepted;
    }
    if (!sequence->commit(choice.token, target.logits)) {
      verdict.outcome = VerifyOutcome::kEnded;
      return verdict;
    }
    if (last || !choice.accepted) return verdict;
  }
}

}  // namespace brigade::runtime
