// What a pass gives of its logit rows: logits and best tokens mixed in one step are those of a step
// that gives all logits, ties go to the lowest id, and a row with a NaN has no best token.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_env.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::tests {
namespace {

using runtime::RowOutput;
using testing::ElementsAre;

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
  // Every row of the step is what `outputs` says, of the logits `expected`.
  static void expect_outputs(const runtime::StepModel& pass, const ModelRunner::Rows& expected,
                             const std::vector<RowOutput>& outputs) {
    for (size_t row = 0; row < outputs.size(); ++row) {
      SCOPED_TRACE(row);
      const int index = static_cast<int>(row);
      if (outputs[row] == RowOutput::kLogits) {
        const auto logits = pass.logits(index);
        ASSERT_EQ(logits.size(), expected[row].size());
        EXPECT_EQ(std::memcmp(logits.data(), expected[row].data(), logits.size_bytes()), 0);
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
    for (int round = 0; round < 12; ++round) {
      // None, all, and any mixture of best tokens.
      for (RowOutput& output : outputs) {
        const bool best = round == 1 || (round > 1 && random() % 2 == 0);
        output = best ? RowOutput::kBestToken : RowOutput::kLogits;
      }
      for (int sequence = 0; sequence < 4; ++sequence) runner->restart(sequence);
      const absl::Status status = runner->run(pieces, outputs);
      ASSERT_TRUE(status.ok()) << status;
      expect_outputs(*runner->model().passes[0], expected, outputs);
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

TEST_P(ForwardPassOutput, ARowWithANanHasNoBestTokenAndSpoilsNoOther) {
  const ModelFolder folder;
  TinyTensors tensors = tiny_llama_tensors();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(&tensors.at("model.embed_tokens.weight").bytes[9 * 8 * sizeof(float)], &nan,
              sizeof nan);
  write(folder, tensors);
  const auto runner = open(folder.path());
  const std::vector<ModelRunner::Piece> pieces = {{0, {3}}, {1, {9}}, {2, {4}}, {3, {9}}};
  const ModelRunner::Rows expected = all_logits(*runner, pieces);
  for (int sequence = 0; sequence < 4; ++sequence) runner->restart(sequence);
  const std::vector<RowOutput> outputs = {RowOutput::kBestToken, RowOutput::kBestToken,
                                          RowOutput::kBestToken, RowOutput::kLogits};
  ASSERT_TRUE(runner->run(pieces, outputs).ok());
  const runtime::StepModel& pass = *runner->model().passes[0];
  EXPECT_THAT(pass.law(0).tokens, ElementsAre(argmax(expected[0])));
  EXPECT_THAT(pass.law(1).tokens, ElementsAre());
  EXPECT_THAT(pass.law(2).tokens, ElementsAre(argmax(expected[2])));
  EXPECT_TRUE(std::isnan(pass.logits(3)[0]));
}

TEST_P(ForwardPassOutput, OutputsForOtherRowsThanThereAreAreRefused) {
  const auto runner = open(source_dir() + "/tests/data/golden/llama_mha");
  const absl::Status status = runner->run({{0, {5, 9}}}, {RowOutput::kBestToken});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("outputs 1 entries for 2 logit rows"));
}

INSTANTIATE_TEST_SUITE_P(Devices, ForwardPassOutput,
                         ::testing::Values(kernels::DeviceKind::kCpu,
                                           kernels::DeviceKind::kCpuAsync),
                         [](const auto& info) {
                           return info.param == kernels::DeviceKind::kCpu ? "cpu" : "cpu_async";
                         });

}  // namespace
}  // namespace brigade::tests
