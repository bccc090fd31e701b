// What the sampling ops take; the ops are in kernels/ops/sampling.h. Plain structs, also for device
// compilers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace brigade::kernels {

inline constexpr int32_t kNoToken = -1;
inline constexpr int kMaxPolicyVocab = 1 << 24;

// ids[r] = the lowest id among the largest of the row; kNoToken for a row that must not be sampled:
// it holds a NaN or +inf, or nothing finite.
struct ArgmaxRowsArgs {
  const float* logits = nullptr;  // [rows, vocab]
  int32_t* ids = nullptr;         // [rows]
  int rows = 0;
  int vocab = 0;
  void* scratch = nullptr;  // argmax_scratch_bytes()
  size_t scratch_bytes = 0;
};

// The rules of one row. Lists are ranges of the call's arrays; token ids lie in [0, vocab).
struct TokenRange {
  int32_t first = 0;
  int32_t count = 0;
};
struct PolicyRow {
  double temperature = 0;  // 0: greedy
  double top_p = 1;        // includes the token that crosses
  double min_p = 0;        // relative to the most likely token
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  int32_t top_k = 0;   // 0: off
  TokenRange bias;     // of bias_tokens and bias_values; added in this order
  TokenRange seen;     // of seen_tokens and seen_counts; distinct tokens
  TokenRange allowed;  // of allowed_tokens; empty: all
  TokenRange banned;   // of banned_tokens
};

// Turns a row of logits into the law to sample from, with the bits of runtime/sampling/policy:
// bias, penalties, allowed and banned tokens, temperature, top-k, top-p, min-p, softmax in f64;
// sums run in rising token id, top-p's in falling weight (ties: lower id first). Greedy: one
// candidate. Of a row with more than max_candidates the first so many are written.
struct PolicyArgs {
  const float* logits = nullptr;        // [rows, vocab]
  const PolicyRow* settings = nullptr;  // [rows]
  const int32_t* bias_tokens = nullptr;
  const float* bias_values = nullptr;
  const int32_t* seen_tokens = nullptr;  // in the prompt or the output
  const int32_t* seen_counts = nullptr;  // how often in the output
  const int32_t* allowed_tokens = nullptr;
  const int32_t* banned_tokens = nullptr;
  int32_t* tokens = nullptr;        // [rows, max_candidates]: in rising id; the rest is undefined
  double* probabilities = nullptr;  // [rows, max_candidates], in the same order
  int32_t* counts = nullptr;        // [rows]: all candidates; 0: a row that must not be sampled
  int rows = 0;
  int vocab = 0;
  int max_candidates = 0;   // that are written of a row, at most vocab
  void* scratch = nullptr;  // policy_scratch_bytes()
  size_t scratch_bytes = 0;
};

// How many leading drafts of each sequence equal what was drawn in their places, and the token
// drawn behind them. Row first_row[s] + i drew the token that draft i of sequence s is held
// against.
struct AcceptDraftsArgs {
  const int32_t* drawn = nullptr;      // [rows]: what was drawn from each row of logits
  const int32_t* first_row = nullptr;  // [sequences]
  const int32_t* drafts = nullptr;     // [sequences, max_drafts]
  const int32_t* num_drafts =
      nullptr;                    // [sequences], at most max_drafts; that many rows and one more
  int32_t* accepted = nullptr;    // [sequences]
  int32_t* next_token = nullptr;  // [sequences]: drawn[first_row + accepted]
  int sequences = 0;
  int max_drafts = 0;
  int rows = 0;
};

}  // namespace brigade::kernels
