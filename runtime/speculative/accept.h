// Verification: from the target's rows and the drafted tokens to the tokens of the
// sequence. Plain decoding is the case without drafts. Rules (Leviathan et al. 2023, Chen et al.
// 2023 for rejection): greedy and coupled draw each token exactly as plain decoding would and keep
// drafts while they are equal, so the drafter cannot change the output; rejection keeps a draft x
// with probability min(1, p(x)/q(x)) and on the first refusal draws from max(0, p - q), so the law
// is the target's. Pure apart from what Continuation does; step thread; allocates nothing.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/sampling/policy.h"
#include "runtime/speculative/chance.h"
#include "runtime/speculative/draft_law.h"
#include "runtime/speculative/target_row.h"

namespace brigade::runtime {

enum class AcceptRule { kGreedy, kCoupled, kRejection };

// greedy at temperature 0, coupled for a seed of the client's, else rejection.
AcceptRule accept_rule(const SamplingParams& params);

// The sequence that verified tokens are committed to, one at a time.
class Continuation {
 public:
  virtual ~Continuation() = default;
  // For the next token, with everything committed so far taken into account.
  virtual PolicyInput policy_input() const = 0;
  // Absolute position of the next token.
  virtual uint32_t position() const = 0;
  // `logits`: the target's row that the token came from; empty where only its law is known. False
  // when the sequence has ended.
  virtual bool commit(int32_t token, std::span<const float> logits) = 0;
};

struct VerifyInput {
  AcceptRule rule = AcceptRule::kGreedy;
  // rows[i]: what follows drafts[0..i); one more than drafts.
  std::span<const TargetRow> rows;
  std::span<const DraftedToken> drafts;
  // The draft after the last one, if it has arrived: tested in the last row instead of a plain
  // draw. Whether it is given may depend on anything but the token itself.
  const DraftedToken* run_ahead = nullptr;
};

enum class VerifyOutcome {
  kGoesOn,
  kEnded,        // commit() said so
  kNotFinite,    // the next row is not usable: nothing was drawn from it
  kNoCandidate,  // the request's options leave no token to choose
};

struct Verdict {
  VerifyOutcome outcome = VerifyOutcome::kGoesOn;
  int committed = 0;
  int tested = 0;    // drafts, the run-ahead token not counted
  int accepted = 0;  // of those
  bool run_ahead_tested = false;
  bool run_ahead_accepted = false;
};

// Planned once for the vocabulary.
struct VerifyScratch {
  explicit VerifyScratch(int vocab) : policy(vocab) {
    for (Distribution* distribution : {&target, &residual}) {
      distribution->tokens.reserve(static_cast<size_t>(vocab));
      distribution->probabilities.reserve(static_cast<size_t>(vocab));
    }
  }
  Policy policy;
  Distribution target;
  Distribution residual;
};

// Commits 1 to drafts + 1 tokens; fewer only when the outcome says why.
Verdict verify(const VerifyInput& input, VerifyScratch* scratch, Chance* chance,
               Continuation* sequence);

}  // namespace brigade::runtime
