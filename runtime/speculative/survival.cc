#include "runtime/speculative/survival.h"

#include <algorithm>
#include <cmath>

namespace brigade::runtime {
namespace {

// Weight, in tested drafts, of what is believed without counts.
constexpr double kPriorWeight = 8;
constexpr double kFirstGuessWeight = 2;
constexpr double kFirstGuess = 0.7;
constexpr double kChance = 3;  // variances
constexpr double kHope = 1.5;  // standard deviations
constexpr double kUntestedKeep = 1 - 1.0 / 400;

}  // namespace

Survival::Survival(double memory) : keep_(1 - 1 / memory) {}

void Survival::record(int tested, int accepted) {
  // Drafts after a refusal were not put to the test.
  const int known = std::min({tested, accepted + 1, kMaxDraftDepth});
  for (int i = 0; i < known; ++i) {
    const auto at = static_cast<size_t>(i);
    tested_[at] = tested_[at] * keep_ + 1;
    accepted_[at] = accepted_[at] * keep_ + (i < accepted);
  }
}

void Survival::fade(int position) {
  for (auto at = static_cast<size_t>(position); at < tested_.size(); ++at) {
    tested_[at] *= kUntestedKeep;
    accepted_[at] *= kUntestedKeep;
  }
}

double Survival::conditional(int position, const Survival* wider) const {
  const auto at = static_cast<size_t>(std::min(position, kMaxDraftDepth - 1));
  double prior = kFirstGuess;
  if (wider != nullptr) {
    prior = wider->conditional(position, nullptr);
  } else if (position > 0) {
    prior = conditional(position - 1, nullptr);
  }
  if (wider == nullptr) {
    return (accepted_[at] + kFirstGuessWeight * prior) / (tested_[at] + kFirstGuessWeight);
  }
  const double own = (accepted_[at] + kPriorWeight * prior) / (tested_[at] + kPriorWeight);
  // Shrunk towards the group as far as chance explains the difference (James and Stein 1961).
  const double miss = own - prior;
  const double variance = prior * (1 - prior) / (tested_[at] + kPriorWeight);
  if (miss * miss <= kChance * variance) return prior;
  return prior + miss * (1 - kChance * variance / (miss * miss));
}

double Survival::hopeful(int position, const Survival& wider) const {
  const auto at = static_cast<size_t>(std::min(position, kMaxDraftDepth - 1));
  const double chance = conditional(position, &wider);
  const double tests = tested_[at] + wider.tested_[at] + kFirstGuessWeight;
  return std::min(1.0, chance + kHope * std::sqrt(chance * (1 - chance) / tests));
}

}  // namespace brigade::runtime
