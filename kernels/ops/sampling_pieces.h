// What the sampling ops keep in their scratch, and how much: for the callers that plan it and for
// the kernels. Plain data, also for device compilers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace brigade::kernels {

// A row's argmax is taken over pieces of this many logits, then over the pieces.
inline constexpr int kArgmaxPiece = 8192;
struct ArgmaxPiece {
  float value;
  int32_t id;      // kNoToken: nothing above -inf
  int32_t broken;  // a NaN or +inf was among them
};
constexpr size_t argmax_scratch_bytes(int max_rows, int vocab) {
  return sizeof(ArgmaxPiece) * size_t(max_rows) *
         ((size_t(vocab) + kArgmaxPiece - 1) / kArgmaxPiece);
}

// A candidate's score, later its weight, and its token.
struct PolicyCandidate {
  double score;
  int32_t token;
};
constexpr size_t policy_scratch_bytes(int max_rows, int vocab) {
  return (sizeof(double) + 2 * sizeof(PolicyCandidate)) * size_t(max_rows) * size_t(vocab);
}

}  // namespace brigade::kernels
