// What the host gets of a row of logits: all of them, or only what the next token is drawn from.
// A row of logits has the size of the vocabulary, so it stays on the device wherever the token can
// be told without it.
#pragma once

#include <cstdint>
#include <span>

namespace brigade::runtime {

enum class RowOutput : uint8_t {
  kLogits,
  kBestToken,  // the lowest id among the largest logits
  kLaw,        // by the row's PolicyRow, which leaves at most kMaxLawTokens
};
inline constexpr int kMaxLawTokens = 64;

// The law of a row's next token, made on the device with the bits of Policy::distribution():
// candidates in rising id and their probabilities. Empty: the row must not be sampled. Of
// kBestToken: that token, with probability 1.
struct RowLaw {
  std::span<const int32_t> tokens;
  std::span<const double> probabilities;
};

}  // namespace brigade::runtime
