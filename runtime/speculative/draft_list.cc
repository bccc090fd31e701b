#include "runtime/speculative/draft_list.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace brigade::runtime {

DraftList::DraftList(int vocab, int max_tokens, int max_law_entries)
    : vocab_(vocab),
      max_tokens_(max_tokens),
      max_law_entries_(max_law_entries),
      law_tokens_(static_cast<size_t>(max_tokens) * static_cast<size_t>(max_law_entries)),
      law_probabilities_(law_tokens_.size()) {
  tokens_.reserve(static_cast<size_t>(max_tokens));
}

void DraftList::clear() {
  tokens_.clear();
  closed_ = false;
}

bool DraftList::push(int32_t token, LawForm form, DraftMade made) {
  closed_ = closed_ || size() == max_tokens_ || token < 0 || token >= vocab_;
  if (closed_) return false;
  tokens_.push_back(
      {.token = token, .form = form, .made = made, .law_tokens = {}, .law_probabilities = {}});
  return true;
}

bool DraftList::push_sparse(int32_t token, std::span<const int32_t> law_tokens,
                            std::span<const double> law_probabilities, DraftMade made) {
  CHECK(law_tokens.size() == law_probabilities.size());
  closed_ = closed_ || law_tokens.size() > static_cast<size_t>(max_law_entries_);
  if (!push(token, LawForm::kSparse, made)) return false;
  const size_t first = (tokens_.size() - 1) * static_cast<size_t>(max_law_entries_);
  std::copy(law_tokens.begin(), law_tokens.end(),
            law_tokens_.begin() + static_cast<std::ptrdiff_t>(first));
  std::copy(law_probabilities.begin(), law_probabilities.end(),
            law_probabilities_.begin() + static_cast<std::ptrdiff_t>(first));
  tokens_.back().law_tokens = std::span(law_tokens_).subspan(first, law_tokens.size());
  tokens_.back().law_probabilities =
      std::span(law_probabilities_).subspan(first, law_tokens.size());
  return true;
}

}  // namespace brigade::runtime
