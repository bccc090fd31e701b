// What a pass gives of its logit rows: logits, best tokens and laws mixed in one step are those of
// a step that gives all logits, ties go to the lowest id, and a row with a NaN has no token.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/sampling/policy.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_env.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::tests {
namespace {

using runtime::RowOutput;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

class ForwardPassOutput : public ::testing::TestWithParam<kernels::DeviceKind> {
 protected:
  static std::unique_ptr<ModelRunner> open(const std::string& folder) {
    auto runner = ModelRunner::open(folder, {.device = GetParam(), .threads = 2});
    EXPECT_TRUE(runner.ok()) << runner.status();
    return *std::move(runner);
  }
  static ModelRunner::Rows all_logits(ModelRunner& runner,
                                      const std::vector<ModelRunner::Piece>& pieces) {
    auto rows = runner.step(pieces);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return *std::move(rows);
  }
  static kernels::PolicyRow some_policy(std::mt19937_64& random) {
    const auto pick = [&](int bound) { return static_cast<int>(random() % bound); };
    return {.temperature = 0.1 + pick(20) / 10.0,
            .top_p = pick(2) == 0 ? 1 : 0.1 + pick(90) / 100.0,
            .min_p = pick(3) == 0 ? 0.1 : 0,
            .top_k = 1 + pick(runtime::kMaxLawTokens)};
  }
  // What the host makes of the logits.
  static runtime::Distribution host_law(const std::vector<float>& logits,
                                        const kernels::PolicyRow& asked) {
    runtime::SamplingParams params;
    params.temperature = asked.temperature;
    params.top_p = asked.top_p;
    params.min_p = asked.min_p;
    params.top_k = asked.top_k;
    runtime::Policy policy(static_cast<int>(logits.size()));
    runtime::Distribution law;
    EXPECT_TRUE(policy.distribution(
        logits, {.params = &params, .counts = nullptr, .forbidden_now = {}}, &law));
    return law;
  }
  // Every row of the step is what `outputs` says, of the logits `expected`.
  static void expect_outputs(const runtime::StepModel& pass, const ModelRunner::Rows& expected,
                             const std::vector<RowOutput>& outputs,
                             const std::vector<kernels::PolicyRow>& policies = {}) {
    auto policy = policies.begin();
    for (size_t row = 0; row < outputs.size(); ++row) {
      SCOPED_TRACE(row);
      const int index = static_cast<int>(row);
      if (outputs[row] == RowOutput::kLogits) {
        const auto logits = pass.logits(index);
        ASSERT_EQ(logits.size(), expected[row].size());
        EXPECT_EQ(std::memcmp(logits.data(), expected[row].data(), logits.size_bytes()), 0);
      } else if (outputs[row] == RowOutput::kLaw) {
        const runtime::Distribution law = host_law(expected[row], *policy++);
        EXPECT_THAT(pass.law(index).tokens, ElementsAreArray(law.tokens));
        EXPECT_THAT(pass.law(index).probabilities, ElementsAreArray(law.probabilities));
      } else {
        EXPECT_THAT(pass.law(index).tokens, ElementsAre(argmax(expected[row])));
        EXPECT_THAT(pass.law(index).probabilities, ElementsAre(1.0));
      }
    }
  }
  static void write(const ModelFolder& folder, const TinyTensors& tensors) {
    folder.write_json("config.json", tiny_llama_config());
    folder.write("model.safetensors", safetensors_bytes(tensors));
  }
};

TEST_P(ForwardPassOutput, MixedRowsAreThoseOfAStepThatGivesAllLogits) {
  std::mt19937_64 random(11);
  for (const char* name : {"llama_gqa_tied", "mixtral_odd_sizes"}) {
    const auto runner = open(source_dir() + "/tests/data/golden/" + name);
    const std::vector<ModelRunner::Piece> pieces = {
        {0, {5, 9, 3}}, {1, {7}}, {2, {30, 21, 4, 6}}, {3, {1, 2}}};
    const ModelRunner::Rows expected = all_logits(*runner, pieces);
    std::vector<RowOutput> outputs(expected.size());
    for (uint64_t round = 0; round < 15; ++round) {
      // All of one kind, then any mixture.
      std::vector<kernels::PolicyRow> policies;
      for (RowOutput& output : outputs) {
        output = static_cast<RowOutput>((round < 3 ? round : random()) % 3);
        if (output == RowOutput::kLaw) policies.push_back(some_policy(random));
      }
      for (int sequence = 0; sequence < 4; ++sequence) runner->restart(sequence);
      const absl::Status status = runner->run(pieces, outputs, policies);
      ASSERT_TRUE(status.ok()) << status;
      expect_outputs(*runner->model().passes[0], expected, outputs, policies);
    }
  }
}

// Two outputs with the same weights have the same logit, whatever the row.
TEST_P(ForwardPassOutput, TiesGoToTheLowestId) {
  const ModelFolder folder;
  TinyTensors tensors = tiny_llama_tensors();
  std::string& weights = tensors.at("lm_head.weight").bytes;  // [16, 8]
  const size_t width = 8 * sizeof(float);
  for (size_t token = 8; token < 16; ++token) {
    std::memcpy(&weights[token * width], &weights[(token - 8) * width], width);
  }
  write(folder, tensors);
  const auto runner = open(folder.path());
  std::vector<ModelRunner::Piece> pieces = {{0, {}}};
  for (int32_t token = 0; token < 16; ++token) pieces[0].tokens.push_back(token);
  const ModelRunner::Rows expected = all_logits(*runner, pieces);
  runner->restart(0);
  const std::vector<RowOutput> outputs(16, RowOutput::kBestToken);
  ASSERT_TRUE(runner->run(pieces, outputs).ok());
  for (size_t row = 0; row < 16; ++row) {
    const int32_t best = argmax(expected[row]);
    ASSERT_LT(best, 8);
    ASSERT_EQ(expected[row][static_cast<size_t>(best)],
              expected[row][static_cast<size_t>(best) + 8]);
  }
  expect_outputs(*runner->model().passes[0], expected, outputs);
}

// More laws of so many tokens than one call of the policy takes.
TEST_P(ForwardPassOutput, LawsOfALargeVocabularyAreMadeInGroups) {
  constexpr int kVocab = 1 << 18, kRows = 14;
  const ModelFolder folder;
  nlohmann::json config = tiny_llama_config();
  config["vocab_size"] = kVocab;
  folder.write_json("config.json", config);
  TinyTensors tensors = tiny_llama_tensors();
  tensors["model.embed_tokens.weight"] = random_f32({kVocab, 8}, 1);
  tensors["lm_head.weight"] = random_f32({kVocab, 8}, 3);
  folder.write("model.safetensors", safetensors_bytes(tensors));
  const auto runner = open(folder.path());
  std::mt19937_64 random(3);
  std::vector<ModelRunner::Piece> pieces = {{0, {}}};
  std::vector<kernels::PolicyRow> policies;
  for (int32_t row = 0; row < kRows; ++row) {
    pieces[0].tokens.push_back(row * 1000);
    policies.push_back(some_policy(random));
  }
  const ModelRunner::Rows expected = all_logits(*runner, pieces);
  runner->restart(0);
  const std::vector<RowOutput> outputs(kRows, RowOutput::kLaw);
  ASSERT_TRUE(runner->run(pieces, outputs, policies).ok());
  expect_outputs(*runner->model().passes[0], expected, outputs, policies);
}

TEST_P(ForwardPassOutput, ARowWithANanHasNoBestTokenAndSpoilsNoOther) {
  const ModelFolder folder;
  TinyTensors tensors = tiny_llama_tensors();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(&tensors.at("model.embed_tokens.weight").bytes[9 * 8 * sizeof(float)], &nan,
              sizeof nan);
  write(folder, tensors);
  const auto runner = open(folder.path());
  const std::vector<ModelRunner::Piece> pieces = {{0, {3}}, {1, {9}}, {2, {4, 9}}, {3, {9}}};
  const ModelRunner::Rows expected = all_logits(*runner, pieces);
  for (int sequence = 0; sequence < 4; ++sequence) runner->restart(sequence);
  const std::vector<RowOutput> outputs = {RowOutput::kBestToken, RowOutput::kBestToken,
                                          RowOutput::kBestToken, RowOutput::kLaw,
                                          RowOutput::kLogits};
  ASSERT_TRUE(runner->run(pieces, outputs, {{.temperature = 1, .top_k = 3}}).ok());
  const runtime::StepModel& pass = *runner->model().passes[0];
  EXPECT_THAT(pass.law(0).tokens, ElementsAre(argmax(expected[0])));
  EXPECT_THAT(pass.law(1).tokens, ElementsAre());
  EXPECT_THAT(pass.law(2).tokens, ElementsAre(argmax(expected[2])));
  EXPECT_THAT(pass.law(3).tokens, ElementsAre());
  EXPECT_TRUE(std::isnan(pass.logits(4)[0]));
}

TEST_P(ForwardPassOutput, WhatCannotBeGivenIsRefused) {
  const auto runner = open(source_dir() + "/tests/data/golden/llama_mha");
  const auto refusal = [&](const std::vector<RowOutput>& outputs,
                           const std::vector<kernels::PolicyRow>& policies) {
    const absl::Status status = runner->run({{0, {5, 9}}}, outputs, policies);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    runner->restart(0);
    return std::string(status.message());
  };
  const std::vector<RowOutput> laws(2, RowOutput::kLaw);
  const kernels::PolicyRow good{.temperature = 1, .top_k = 3};
  kernels::PolicyRow bad = good;
  EXPECT_THAT(refusal({RowOutput::kBestToken}, {}), HasSubstr("outputs 1 entries for 2 logit"));
  EXPECT_THAT(refusal(laws, {good}), HasSubstr("policies 1 entries for 2 rows"));
  bad.top_k = 0;
  EXPECT_THAT(refusal(laws, {good, bad}), HasSubstr("top_k 0 outside 1 to 64"));
  bad.top_k = 65;
  EXPECT_THAT(refusal(laws, {good, bad}), HasSubstr("top_k 65 outside 1 to 64"));
  bad = good;
  bad.banned.count = 1;
  EXPECT_THAT(refusal(laws, {bad, good}), HasSubstr("one with a list"));
}

INSTANTIATE_TEST_SUITE_P(Devices, ForwardPassOutput,
                         ::testing::Values(kernels::DeviceKind::kCpu,
                                           kernels::DeviceKind::kCpuAsync),
                         [](const auto& info) {
                           return info.param == kernels::DeviceKind::kCpu ? "cpu" : "cpu_async";
                         });

}  // namespace
}  // namespace brigade::tests
