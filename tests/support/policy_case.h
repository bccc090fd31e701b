// Rows of logits with random sampling rules, for the tests that hold the op `policy` against the
// host's routine and its devices against each other. Test thread only.
#pragma once

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops/sampling.h"
#include "tests/kernels/op_runner.h"

namespace brigade::tests {

struct PolicyCase {
  struct Law {
    std::vector<int32_t> tokens;
    std::vector<double> probabilities;
  };

  int vocab = 0;
  std::vector<float> logits;  // [rows, vocab]
  std::vector<kernels::PolicyRow> settings;
  std::vector<int32_t> bias_tokens, seen_tokens, seen_counts, allowed_tokens, banned_tokens;
  std::vector<float> bias_values;

  static PolicyCase random(std::mt19937_64& random, int vocab, int rows) {
    PolicyCase c;
    c.vocab = vocab;
    for (int row = 0; row < rows; ++row) c.add_row(random, row);
    return c;
  }

  void add_row(std::mt19937_64& random, int number) {
    const auto pick = [&](int bound) { return static_cast<int>(random() % bound); };
    const auto token = [&] { return static_cast<int32_t>(random() % vocab); };
    const bool coarse = pick(3) == 0;  // many equal logits
    std::normal_distribution<float> normal(0, pick(2) == 0 ? 0.5f : 4.0f);
    for (int t = 0; t < vocab; ++t) {
      logits.push_back(coarse ? static_cast<float>(pick(5) - 2) : normal(random));
    }
    float* const row = logits.data() + logits.size() - vocab;
    if (number % 12 == 9) row[pick(vocab)] = std::numeric_limits<float>::quiet_NaN();
    if (number % 12 == 10) row[pick(vocab)] = std::numeric_limits<float>::infinity();
    if (number % 12 == 11) std::fill_n(row, vocab, -std::numeric_limits<float>::infinity());
    if (pick(4) == 0) row[pick(vocab)] = -std::numeric_limits<float>::infinity();

    kernels::PolicyRow rules;
    if (pick(5) != 0) rules.temperature = 0.01 + pick(200) / 100.0;
    if (pick(2) == 0) rules.top_k = 1 + pick(2 * vocab);
    if (pick(2) == 0) rules.top_p = pick(2) == 0 ? 0.05 + pick(90) / 100.0 : 0.9999;
    if (pick(3) == 0) rules.min_p = pick(100) / 200.0;
    if (pick(3) == 0) add_penalties(random, rules);
    rules.bias = {size_of(bias_tokens), pick(2) == 0 ? pick(6) : 0};
    for (int i = 0; i < rules.bias.count; ++i) {
      bias_tokens.push_back(token());
      bias_values.push_back(normal(random));
    }
    rules.allowed = {size_of(allowed_tokens), pick(3) == 0 ? 1 + pick(vocab) : 0};
    for (int i = 0; i < rules.allowed.count; ++i) allowed_tokens.push_back(token());
    rules.banned = {size_of(banned_tokens), pick(2) == 0 ? pick(5) : 0};
    for (int i = 0; i < rules.banned.count; ++i) banned_tokens.push_back(token());
    settings.push_back(rules);
  }

  // Of each law the first `most` candidates; 0: all.
  std::vector<Law> run(OpRunner& runner, int most = 0) const {
    const int width = most == 0 ? vocab : most;
    const size_t rows = settings.size();
    const kernels::Buffer at[] = {runner.upload(logits),         runner.upload(settings),
                                  runner.upload(bias_tokens),    runner.upload(bias_values),
                                  runner.upload(seen_tokens),    runner.upload(seen_counts),
                                  runner.upload(allowed_tokens), runner.upload(banned_tokens)};
    const std::vector<uint8_t> poison(rows * width * sizeof(double), 0xFF);
    const kernels::Buffer tokens = runner.upload(poison), probabilities = runner.upload(poison);
    const kernels::Buffer counts = runner.upload(std::vector<int32_t>(rows, -1));
    const size_t scratch_bytes = kernels::policy_scratch_bytes(static_cast<int>(rows), vocab);
    const kernels::Buffer scratch = runner.upload(std::vector<uint8_t>(scratch_bytes, 0xFF));
    OpRunner::expect_ok(
        kernels::policy(runner.stream(), {.logits = at[0].as<float>(),
                                          .settings = at[1].as<kernels::PolicyRow>(),
                                          .bias_tokens = at[2].as<int32_t>(),
                                          .bias_values = at[3].as<float>(),
                                          .seen_tokens = at[4].as<int32_t>(),
                                          .seen_counts = at[5].as<int32_t>(),
                                          .allowed_tokens = at[6].as<int32_t>(),
                                          .banned_tokens = at[7].as<int32_t>(),
                                          .tokens = tokens.as<int32_t>(),
                                          .probabilities = probabilities.as<double>(),
                                          .counts = counts.as<int32_t>(),
                                          .rows = static_cast<int>(rows),
                                          .vocab = vocab,
                                          .max_candidates = width,
                                          .scratch = scratch.data(),
                                          .scratch_bytes = scratch_bytes}));
    runner.synchronize();
    return laws(runner.download<int32_t>(counts), runner.download<int32_t>(tokens),
                runner.download<double>(probabilities), width);
  }

  std::string describe(size_t row) const {
    const kernels::PolicyRow& r = settings[row];
    return "temperature " + std::to_string(r.temperature) + " top_k " + std::to_string(r.top_k) +
           " top_p " + std::to_string(r.top_p) + " min_p " + std::to_string(r.min_p) + " bias " +
           std::to_string(r.bias.count) + " seen " + std::to_string(r.seen.count) + " allowed " +
           std::to_string(r.allowed.count) + " banned " + std::to_string(r.banned.count);
  }

 private:
  static int32_t size_of(const std::vector<int32_t>& list) {
    return static_cast<int32_t>(list.size());
  }

  void add_penalties(std::mt19937_64& random, kernels::PolicyRow& rules) {
    const auto unit = [&] { return static_cast<double>(random() % 1000) / 1000; };
    rules.repetition_penalty = 0.8 + unit();
    rules.presence_penalty = unit() - 0.5;
    rules.frequency_penalty = unit() - 0.5;
    rules.seen.first = size_of(seen_tokens);
    for (int t = static_cast<int>(random() % 3); t < vocab;
         t += 1 + static_cast<int>(random() % 9)) {
      seen_tokens.push_back(t);
      seen_counts.push_back(static_cast<int32_t>(random() % 3));
    }
    rules.seen.count = size_of(seen_tokens) - rules.seen.first;
  }

  std::vector<Law> laws(const std::vector<int32_t>& counts, const std::vector<int32_t>& tokens,
                        const std::vector<double>& probabilities, int width) const {
    std::vector<Law> laws;
    for (size_t row = 0; row < counts.size(); ++row) {
      EXPECT_TRUE(counts[row] >= 0 && counts[row] <= vocab) << counts[row];
      const int count = counts[row] >= 0 && counts[row] <= vocab ? std::min(counts[row], width) : 0;
      const size_t first = row * static_cast<size_t>(width);
      laws.push_back({{tokens.begin() + first, tokens.begin() + first + count},
                      {probabilities.begin() + first, probabilities.begin() + first + count}});
    }
    return laws;
  }
};

}  // namespace brigade::tests
