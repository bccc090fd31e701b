// The numerics probe's argmax and laws to sample from.
#include <algorithm>
#include <cstring>

#include "kernels/ops/probe_bench.h"
#include "kernels/ops/sampling.h"

namespace brigade::kernels {
namespace {

constexpr int kVocab = 1037, kRows = 4;

// Greedy; everything at a temperature; the nucleus with penalties; the best few with a bias.
std::vector<PolicyRow> settings() {
  std::vector<PolicyRow> rows(kRows);
  for (int r = 1; r < kRows; ++r) rows[r].temperature = 0.5 + 0.3 * r;
  rows[2].top_p = 0.875;
  rows[2].repetition_penalty = 1.25;
  rows[2].frequency_penalty = 0.5;
  rows[2].seen = {.first = 0, .count = 3};
  rows[3].top_k = 40;
  rows[3].min_p = 0.03125;
  rows[3].bias = {.first = 0, .count = 3};
  rows[3].banned = {.first = 0, .count = 2};
  return rows;
}

absl::StatusOr<Buffer> argmax_of(ProbeBench& bench, const Buffer& logits) {
  ASSIGN_OR_RETURN(Buffer ids, bench.allocate(kRows * sizeof(int32_t)));
  ASSIGN_OR_RETURN(const Buffer scratch, bench.allocate(argmax_scratch_bytes(kRows, kVocab)));
  RETURN_IF_ERROR(argmax_rows(bench.stream(), {.logits = logits.as<float>(),
                                               .ids = ids.as<int32_t>(),
                                               .rows = kRows,
                                               .vocab = kVocab,
                                               .scratch = scratch.data(),
                                               .scratch_bytes = scratch.bytes()}));
  return ids;
}

// What lies behind a row's candidates is undefined: only those are kept.
absl::Status keep(ProbeBench& bench, const Buffer& ids, const Buffer& counts, const Buffer& tokens,
                  const Buffer& laws) {
  ASSIGN_OR_RETURN(std::vector<uint8_t> all, bench.download(ids));
  ASSIGN_OR_RETURN(const std::vector<uint8_t> count_bytes, bench.download(counts));
  ASSIGN_OR_RETURN(const std::vector<uint8_t> token_bytes, bench.download(tokens));
  ASSIGN_OR_RETURN(const std::vector<uint8_t> law_bytes, bench.download(laws));
  all.insert(all.end(), count_bytes.begin(), count_bytes.end());
  const auto add = [&all](const std::vector<uint8_t>& from, size_t first, size_t count) {
    all.insert(all.end(), from.begin() + first, from.begin() + first + count);
  };
  for (size_t r = 0; r < kRows; ++r) {
    int32_t count = 0;
    std::memcpy(&count, &count_bytes[r * sizeof(count)], sizeof(count));
    const size_t first = r * kVocab, found = std::min(std::max(count, 0), kVocab);
    add(token_bytes, first * sizeof(int32_t), found * sizeof(int32_t));
    add(law_bytes, first * sizeof(double), found * sizeof(double));
  }
  bench.keep("argmax and policy", all.data(), all.size());
  return absl::OkStatus();
}

}  // namespace

absl::Status probe_sampling(ProbeBench& bench) {
  ASSIGN_OR_RETURN(const Buffer logits, bench.random(DType::kF32, size_t{kRows} * kVocab));
  ASSIGN_OR_RETURN(const Buffer ids, argmax_of(bench, logits));
  const std::vector<int32_t> listed = {5, 900, 5}, seen = {7, 8, 600}, often = {0, 2, 9};
  ASSIGN_OR_RETURN(const Buffer settings_at, bench.upload(settings()));
  ASSIGN_OR_RETURN(const Buffer listed_at, bench.upload(listed));
  ASSIGN_OR_RETURN(const Buffer bias_at, bench.random(DType::kF32, listed.size()));
  ASSIGN_OR_RETURN(const Buffer seen_at, bench.upload(seen));
  ASSIGN_OR_RETURN(const Buffer often_at, bench.upload(often));
  ASSIGN_OR_RETURN(const Buffer tokens, bench.allocate(size_t{kRows} * kVocab * sizeof(int32_t)));
  ASSIGN_OR_RETURN(const Buffer laws, bench.allocate(size_t{kRows} * kVocab * sizeof(double)));
  ASSIGN_OR_RETURN(const Buffer counts, bench.allocate(kRows * sizeof(int32_t)));
  ASSIGN_OR_RETURN(const Buffer scratch, bench.allocate(policy_scratch_bytes(kRows, kVocab)));
  RETURN_IF_ERROR(policy(bench.stream(), {.logits = logits.as<float>(),
                                          .settings = settings_at.as<PolicyRow>(),
                                          .bias_tokens = listed_at.as<int32_t>(),
                                          .bias_values = bias_at.as<float>(),
                                          .seen_tokens = seen_at.as<int32_t>(),
                                          .seen_counts = often_at.as<int32_t>(),
                                          .banned_tokens = listed_at.as<int32_t>(),
                                          .tokens = tokens.as<int32_t>(),
                                          .probabilities = laws.as<double>(),
                                          .counts = counts.as<int32_t>(),
                                          .rows = kRows,
                                          .vocab = kVocab,
                                          .max_candidates = kVocab,
                                          .scratch = scratch.data(),
                                          .scratch_bytes = scratch.bytes()}));
  return keep(bench, ids, counts, tokens, laws);
}

}  // namespace brigade::kernels
