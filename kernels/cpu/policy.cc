#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/row_pieces.h"
#include "kernels/ops/policy_law.h"

namespace brigade::kernels {
namespace {

template <typename T>
std::span<const T> part(const T* list, TokenRange range) {
  return {list + range.first, static_cast<size_t>(range.count)};
}

void score_tokens(const PolicyArgs& args, const PolicyRow& row, std::span<const float> logits,
                  std::span<double> scores) {
  std::copy(logits.begin(), logits.end(), scores.begin());
  for (int i = row.bias.first; i < row.bias.first + row.bias.count; ++i) {
    scores[args.bias_tokens[i]] += args.bias_values[i];
  }
  for (int i = row.seen.first; i < row.seen.first + row.seen.count; ++i) {
    double& score = scores[args.seen_tokens[i]];
    score = score > 0 ? score / row.repetition_penalty : score * row.repetition_penalty;
    if (args.seen_counts[i] > 0) {
      score -= row.presence_penalty + row.frequency_penalty * args.seen_counts[i];
    }
  }
}

// `marks`: one byte a token.
void exclude_tokens(const PolicyArgs& args, const PolicyRow& row, std::span<uint8_t> marks,
                    std::span<double> scores) {
  if (row.allowed.count > 0) {
    std::fill(marks.begin(), marks.end(), uint8_t{0});
    for (const int32_t token : part(args.allowed_tokens, row.allowed)) marks[token] = 1;
    for (size_t t = 0; t < scores.size(); ++t) {
      if (marks[t] == 0) scores[t] = kExcludedScore;
    }
  }
  for (const int32_t token : part(args.banned_tokens, row.banned)) scores[token] = kExcludedScore;
}

// Divides the weights by their sum, added up in order. Zero when that is not a positive number.
int write_law(const PolicyArgs& args, int64_t r, std::span<const PolicyCandidate> law) {
  double sum = 0;
  for (const PolicyCandidate& candidate : law) sum += candidate.score;
  if (!std::isfinite(sum) || !(sum > 0)) return 0;
  const auto most = static_cast<size_t>(args.max_candidates);
  for (size_t i = 0; i < std::min(law.size(), most); ++i) {
    args.tokens[r * args.max_candidates + i] = law[i].token;
    args.probabilities[r * args.max_candidates + i] = law[i].score / sum;
  }
  return static_cast<int>(law.size());
}

void policy_row(const PolicyArgs& args, int64_t r) {
  const auto vocab = static_cast<size_t>(args.vocab);
  auto* const bytes =
      static_cast<std::byte*>(args.scratch) + r * policy_scratch_bytes(1, args.vocab);
  const std::span<double> scores(reinterpret_cast<double*>(bytes), vocab);
  auto* const candidates = reinterpret_cast<PolicyCandidate*>(scores.data() + vocab);
  const LawScratch scratch = {{candidates, vocab}, {candidates + vocab, vocab}};
  const std::span<const float> logits(args.logits + r * args.vocab, vocab);
  args.counts[r] = 0;
  if (!usable_logits(logits)) return;
  const PolicyRow& row = args.settings[r];
  score_tokens(args, row, logits, scores);
  exclude_tokens(args, row, {reinterpret_cast<uint8_t*>(candidates), vocab}, scores);
  args.counts[r] = write_law(args, r, law_of_scores(row, scores, scratch));
}

}  // namespace

void cpu::policy(const PolicyArgs& args, ThreadPool& threads) {
  // An exp and the comparisons of a selection for each token.
  for_row_pieces(threads, args.rows, int64_t{20} * args.vocab, [&](int first, int last) {
    for (int64_t row = first; row < last; ++row) policy_row(args, row);
  });
}

}  // namespace brigade::kernels
