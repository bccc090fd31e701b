#include "runtime/speculative/draft_mirror.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "runtime/speculative/text_hash.h"

namespace brigade::runtime {

DraftMirror::DraftMirror(std::span<const int32_t> text, int max_positions, int max_run_ahead)
    : max_positions_(max_positions), max_run_ahead_(max_run_ahead) {
  const auto most = static_cast<size_t>(std::max(max_positions, static_cast<int>(text.size())));
  text_.reserve(most);
  hashes_.reserve(most + 1);
  hashes_.push_back(kEmptyTextHash);
  for (const int32_t token : text) push(token);
  committed_ = static_cast<int>(text.size());
}

void DraftMirror::push(int32_t token) {
  text_.push_back(token);
  hashes_.push_back(extend_text_hash(hashes_.back(), token));
}

absl::Status DraftMirror::commit(int base_length, std::span<const int32_t> tokens, Commit* result) {
  if (base_length != committed_) {
    return absl::FailedPreconditionError(
        absl::StrCat("commit: base_length ", base_length, ", but ", committed_, " are committed"));
  }
  if (static_cast<int64_t>(committed_) + static_cast<int64_t>(tokens.size()) > max_positions_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("commit: the text would outgrow ", max_positions_, " positions"));
  }
  const auto first = static_cast<size_t>(committed_);
  const size_t compared = std::min(tokens.size(), text_.size() - first);
  size_t common = 0;
  while (common < compared && text_[first + common] == tokens[common]) ++common;
  result->survived = common == compared;
  if (!result->survived) {
    text_.resize(first + common);
    hashes_.resize(first + common + 1);
  }
  result->kept = static_cast<int>(text_.size());
  for (; common < tokens.size(); ++common) push(tokens[common]);
  committed_ += static_cast<int>(tokens.size());
  return absl::OkStatus();
}

int DraftMirror::room() const {
  return std::min(max_run_ahead_ - guesses(), max_positions_ - static_cast<int>(text_.size()));
}

void DraftMirror::add_guess(int32_t token) {
  CHECK(room() > 0);
  push(token);
}

}  // namespace brigade::runtime
