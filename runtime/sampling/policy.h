// The one routine that turns a row of logits into the distribution to sample from. Plain decoding
// and verification of drafts call the same code. Order: bias, penalties, allowed and banned tokens,
// temperature, top-k, top-p, min-p, softmax in f64. Not thread-safe: one Policy per step thread; it
// keeps scratch planned for the vocabulary, so a call allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/ops/sampling_args.h"
#include "kernels/ops/sampling_pieces.h"
#include "runtime/request/request.h"

namespace brigade::runtime {

// Tokens seen by one sequence, kept up to date by commit (and by a draft prefix while verifying).
class TokenCounts {
 public:
  explicit TokenCounts(std::span<const int32_t> prompt = {});
  void reserve_outputs(int tokens);  // so that add_output of this many does not allocate
  void add_output(int32_t token);
  void remove_output(int32_t token);  // takes a draft token back
  // Calls f(token, in_prompt, output_count) for every token seen.
  template <typename F>
  void for_each(F&& f) const {
    for (const auto& [token, seen] : seen_) f(token, seen.in_prompt, seen.output_count);
  }

 private:
  struct Seen {
    bool in_prompt = false;
    int output_count = 0;
  };
  absl::flat_hash_map<int32_t, Seen> seen_;
};

struct PolicyInput {
  const SamplingParams* params = nullptr;
  const TokenCounts* counts = nullptr;     // null: no penalties
  std::span<const int32_t> forbidden_now;  // EOS and stop ids while below min_tokens
};

// Nothing adds to a logit or excludes a token: the law follows from the row and policy_row().
bool takes_logits_as_they_are(const PolicyInput& input);
// The rules without lists.
kernels::PolicyRow policy_row(const SamplingParams& params);

// Candidates in ascending token id with probabilities that sum to 1 (f64, normalised by one
// routine). Greedy: exactly one candidate with probability 1.
struct Distribution {
  std::vector<int32_t> tokens;
  std::vector<double> probabilities;
};

// Divides `weights` by their sum, added up in order in f64. Every law in the server, on the
// target's and on the draft's side, is normalised here. False, with nothing changed, when the sum
// is not finite and positive.
bool normalise(std::span<double> weights);

class Policy {
 public:
  explicit Policy(int vocab);

  // logits: [vocab]. False when the row holds a NaN, or +Inf, or leaves no candidate: nothing is
  // ever drawn from such a row. Distribution storage is reused.
  bool distribution(std::span<const float> logits, const PolicyInput& input, Distribution* out);

 private:
  void score_tokens(std::span<const float> logits, const PolicyInput& input);

  std::vector<double> scores_;                                   // [vocab]
  std::vector<kernels::PolicyCandidate> candidates_, selected_;  // [vocab]
  std::vector<uint8_t> allowed_;                                 // [vocab]
};

// All logits finite except -Inf? False names a row that must not be sampled (NaN or +Inf, or all
// -Inf).
bool usable_logits(std::span<const float> logits);

}  // namespace brigade::runtime
