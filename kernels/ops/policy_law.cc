#include "kernels/ops/policy_law.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/ops/math.h"

namespace brigade::kernels {
namespace {

bool better(const PolicyCandidate& a, const PolicyCandidate& b) {
  return a.score != b.score ? a.score > b.score : a.token < b.token;
}
bool lower_token(const PolicyCandidate& a, const PolicyCandidate& b) { return a.token < b.token; }

std::span<const PolicyCandidate> best_alone(std::span<const double> scores,
                                            const LawScratch& scratch) {
  size_t best = 0;
  for (size_t t = 1; t < scores.size(); ++t) {
    if (scores[t] > scores[best]) best = t;
  }
  if (!std::isfinite(scores[best])) return {};
  scratch.candidates[0] = {1.0, static_cast<int32_t>(best)};
  return scratch.candidates.first(1);
}

// Candidates in rising token id between the steps; `spare` is the other half of the scratch.
class Law {
 public:
  Law(std::span<const double> scores, double temperature, const LawScratch& scratch)
      : all_(scratch.candidates), spare_(scratch.selected) {
    for (size_t t = 0; t < scores.size(); ++t) {
      if (scores[t] == kExcludedScore) continue;
      const double score = scores[t] / temperature;
      all_[count_++] = {score, static_cast<int32_t>(t)};
      best_ = std::max(best_, score);
    }
  }

  void apply_top_k(int top_k) {
    if (top_k <= 0 || static_cast<size_t>(top_k) >= count_) return;
    keep(select_best(top_k));
  }

  // Scores become exp(score - best). Returns their sum.
  double exponentiate() {
    double sum = 0;
    for (PolicyCandidate& candidate : candidates()) {
      candidate.score = exp_f64(candidate.score - best_);
      sum += candidate.score;
    }
    return sum;
  }

  // Looks at growing sets of the heaviest candidates until their mass crosses.
  void apply_top_p(double top_p, double sum) {
    if (top_p >= 1) return;
    const double wanted = top_p * sum;
    for (size_t count = 64;; count *= 8) {
      const size_t selected = select_best(count);
      double mass = 0;
      for (size_t i = 0; i < selected; ++i) {
        mass += spare_[i].score;
        if (mass >= wanted) return keep(i + 1);
      }
      if (selected == count_) return keep(selected);
    }
  }

  std::span<const PolicyCandidate> heavier_than(double min_p) {
    const auto light = [&](const PolicyCandidate& c) {
      return c.score == 0 || (min_p > 0 && c.score < min_p);
    };
    const auto all = candidates();
    return all.first(std::remove_if(all.begin(), all.end(), light) - all.begin());
  }

 private:
  std::span<PolicyCandidate> candidates() { return all_.first(count_); }

  // The `count` best of the candidates, in falling order, into `spare_`. Returns how many there
  // are.
  size_t select_best(size_t count) {
    std::copy_n(all_.begin(), count_, spare_.begin());
    count = std::min(count, count_);
    if (count < count_) {
      std::nth_element(spare_.begin(), spare_.begin() + count, spare_.begin() + count_, better);
    }
    std::sort(spare_.begin(), spare_.begin() + count, better);
    return count;
  }

  // The first `count` of `spare_` are the candidates now.
  void keep(size_t count) {
    std::swap(all_, spare_);
    count_ = count;
    std::sort(all_.begin(), all_.begin() + count, lower_token);
  }

  std::span<PolicyCandidate> all_, spare_;
  size_t count_ = 0;
  double best_ = kExcludedScore;
};

}  // namespace

bool usable_logits(std::span<const float> logits) {
  bool any_finite = false;
  for (const float logit : logits) {
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity()) return false;
    any_finite |= std::isfinite(logit);
  }
  return any_finite;
}

std::span<const PolicyCandidate> law_of_scores(const PolicyRow& row, std::span<const double> scores,
                                               const LawScratch& scratch) {
  if (row.temperature == 0) return best_alone(scores, scratch);
  Law law(scores, row.temperature, scratch);
  law.apply_top_k(row.top_k);
  law.apply_top_p(row.top_p, law.exponentiate());
  return law.heavier_than(row.min_p);
}

}  // namespace brigade::kernels
