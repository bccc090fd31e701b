#include "runtime/speculative/draft_law.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace brigade::runtime {

double probability_in(std::span<const int32_t> tokens, std::span<const double> probabilities,
                      int32_t token) {
  const auto at = std::lower_bound(tokens.begin(), tokens.end(), token);
  if (at == tokens.end() || *at != token) return 0;
  return probabilities[static_cast<size_t>(at - tokens.begin())];
}

double draft_probability(const DraftedToken& draft, int32_t token) {
  switch (draft.form) {
    case LawForm::kNone:
      return 0;
    case LawForm::kPointMass:
      return token == draft.token ? 1 : 0;
    case LawForm::kSparse:
      return probability_in(draft.law_tokens, draft.law_probabilities, token);
  }
  return 0;
}

void sparse_weights(const Distribution& full, int most, std::vector<int32_t>* tokens,
                    std::vector<float>* weights) {
  std::vector<size_t> order(full.tokens.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto kept =
      static_cast<std::ptrdiff_t>(std::min(order.size(), static_cast<size_t>(std::max(most, 0))));
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), [&](size_t a, size_t b) {
    if (full.probabilities[a] != full.probabilities[b]) {
      return full.probabilities[a] > full.probabilities[b];
    }
    return a < b;
  });
  order.resize(static_cast<size_t>(kept));
  std::sort(order.begin(), order.end());
  tokens->clear();
  weights->clear();
  for (const size_t i : order) {
    tokens->push_back(full.tokens[i]);
    weights->push_back(static_cast<float>(full.probabilities[i]));
  }
}

absl::Status law_from_weights(std::span<const int32_t> tokens, std::span<const float> weights,
                              int vocab, Distribution* law) {
  if (tokens.size() != weights.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("law: ", tokens.size(), " tokens but ", weights.size(), " weights"));
  }
  law->tokens.clear();
  law->probabilities.clear();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab || (i > 0 && tokens[i] <= tokens[i - 1])) {
      return absl::InvalidArgumentError(
          absl::StrCat("law: token ", tokens[i], " at entry ", i,
                       " is outside the vocabulary or not in ascending order"));
    }
    if (!std::isfinite(weights[i]) || weights[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("law: the weight of token ", tokens[i], " is negative or not finite"));
    }
    law->tokens.push_back(tokens[i]);
    law->probabilities.push_back(weights[i]);
  }
  if (!normalise(law->probabilities)) {
    return absl::InvalidArgumentError("law: no token has a positive weight");
  }
  return absl::OkStatus();
}

}  // namespace brigade::runtime
