// Logits and greedy tokens against what the reference implementation computes from the same files.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/files/json.h"
#include "runtime/model/safetensors.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_env.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;
using tests::ModelRunner;
using tests::RunnerOptions;
using Rows = ModelRunner::Rows;

constexpr float kTolerance = 1e-4f;  // of the row's largest |logit|

std::string golden_folder() { return tests::source_dir() + "/tests/data/golden"; }

std::vector<std::string> golden_cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder())) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// What golden.json and golden.safetensors of one case expect.
class Golden {
 public:
  explicit Golden(const std::string& folder)
      : file_(*SafetensorsFile::open(folder + "/golden.safetensors")),
        values_(*read_json_file(folder + "/golden.json")) {}

  const json& prompts() const { return values_["prompts"]; }
  Rows logits(const std::string& name) const {
    for (const SafetensorsEntry& entry : file_.entries()) {
      if (entry.name != name) continue;
      Rows rows(entry.shape[0], std::vector<float>(entry.shape[1]));
      const auto* bytes = static_cast<const uint8_t*>(file_.data(entry));
      for (std::vector<float>& row : rows) {
        std::memcpy(row.data(), bytes, row.size() * sizeof(float));
        bytes += row.size() * sizeof(float);
      }
      return rows;
    }
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }

 private:
  SafetensorsFile file_;
  json values_;
};

// Largest |a - b| over the largest |b|; infinite when a value is not finite.
float row_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float difference = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    difference = std::max(difference, std::fabs(a[i] - b[i]));
    largest = std::max(largest, std::fabs(b[i]));
  }
  return difference / largest;
}

float worst_difference(const Rows& a, const Rows& b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    worst = std::max(worst, row_difference(a[i], b[i]));
  }
  return worst;
}

bool same_bits(const Rows& a, const Rows& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

std::unique_ptr<ModelRunner> open_runner(const std::string& folder, const RunnerOptions& options) {
  auto runner = ModelRunner::open(folder, options);
  EXPECT_TRUE(runner.ok()) << runner.status();
  return runner.ok() ? *std::move(runner) : nullptr;
}

// Greedy continuations of all prompts together, each step one row per sequence.
std::vector<std::vector<int32_t>> greedy(ModelRunner& runner,
                                         const std::vector<std::vector<int32_t>>& prompts,
                                         int count, std::vector<std::vector<float>>* last_rows) {
  std::vector<ModelRunner::Piece> pieces;
  std::vector<std::vector<int32_t>> made(prompts.size());
  last_rows->clear();
  for (size_t s = 0; s < prompts.size(); ++s) {
    runner.restart(static_cast<int>(s));
    const auto rows = runner.feed(static_cast<int>(s), prompts[s], 64);
    EXPECT_TRUE(rows.ok()) << rows.status();
    last_rows->push_back(rows->back());
    pieces.push_back({static_cast<int>(s), {tests::argmax(rows->back())}});
  }
  for (int i = 0; i < count; ++i) {
    for (size_t s = 0; s < prompts.size(); ++s) made[s].push_back(pieces[s].tokens[0]);
    if (i + 1 == count) break;
    const auto rows = runner.step(pieces);
    EXPECT_TRUE(rows.ok()) << rows.status();
    *last_rows = *rows;
    for (size_t s = 0; s < prompts.size(); ++s) pieces[s].tokens[0] = tests::argmax((*rows)[s]);
  }
  return made;
}

class GoldenTest : public ::testing::TestWithParam<std::tuple<std::string, kernels::DeviceKind>> {};

TEST_P(GoldenTest, LogitsAndGreedyTokens) {
  const auto& [name, device] = GetParam();
  const std::string folder = golden_folder() + "/" + name;
  const Golden golden(folder);
  const auto runner = open_runner(folder, {.device = device, .threads = 2});
  ASSERT_NE(runner, nullptr);
  std::vector<std::vector<int32_t>> prompts, expected_greedy;
  for (const json& prompt : golden.prompts()) {
    prompts.push_back(prompt["ids"]);
    expected_greedy.push_back(prompt["greedy_ids"]);
    const Rows expected = golden.logits(prompt["logits"]);
    const auto once = runner->feed(0, prompts.back(), 64);
    ASSERT_TRUE(once.ok()) << once.status();
    ASSERT_EQ(once->size(), prompts.back().size());
    EXPECT_LE(worst_difference(*once, expected), kTolerance);
    // Chunks cannot show: not within a tolerance, in no bit.
    for (int chunk : {1, 3, 7}) {
      runner->restart(0);
      const auto chunked = runner->feed(0, prompts.back(), chunk);
      ASSERT_TRUE(chunked.ok()) << chunked.status();
      EXPECT_TRUE(same_bits(*once, *chunked)) << "chunk " << chunk;
    }
    runner->restart(0);
  }
  std::vector<std::vector<float>> last_rows;
  EXPECT_EQ(greedy(*runner, prompts, 64, &last_rows), expected_greedy);
  for (size_t s = 0; s < prompts.size(); ++s) {
    const Rows expected = golden.logits(golden.prompts()[s]["greedy_last_logits"]);
    EXPECT_LE(row_difference(last_rows[s], expected[0]), kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTest,
                         ::testing::Combine(::testing::ValuesIn(golden_cases()),
                                            ::testing::Values(kernels::DeviceKind::kCpu,
                                                              kernels::DeviceKind::kCpuAsync)),
                         [](const auto& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) == kernels::DeviceKind::kCpu
                                       ? "_cpu"
                                       : "_cpu_async");
                         });

// Two spellings of one rope, and both devices, give equal bits.
TEST(GoldenBits, SpellingAndDeviceDoNotShow) {
  Rows first;
  for (const char* name : {"llama_rope_llama3", "llama_rope_parameters"}) {
    for (const kernels::DeviceKind device :
         {kernels::DeviceKind::kCpu, kernels::DeviceKind::kCpuAsync}) {
      const std::string folder = golden_folder() + "/" + name;
      const std::vector<int32_t> prompt = Golden(folder).prompts()[2]["ids"];
      const auto runner = open_runner(folder, {.device = device, .threads = 1});
      ASSERT_NE(runner, nullptr);
      const auto rows = runner->feed(1, prompt, 64);
      ASSERT_TRUE(rows.ok()) << rows.status();
      if (first.empty()) first = *rows;
      EXPECT_TRUE(same_bits(first, *rows)) << name;
    }
  }
}

// Every family has experts that are used, and each routed row is counted top_k times.
TEST(GoldenCounters, ExpertRows) {
  const std::string folder = golden_folder() + "/mixtral_top2";
  const std::vector<int32_t> prompt = Golden(folder).prompts()[2]["ids"];
  const auto runner = open_runner(folder, {});
  ASSERT_NE(runner, nullptr);
  ASSERT_TRUE(runner->feed(0, prompt, 16).ok());
  const auto counts = runner->model().passes[0]->expert_rows();
  ASSERT_EQ(counts.size(), 2u);
  for (const auto& layer : counts) {
    int64_t sum = 0;
    for (int64_t count : layer) sum += count;
    EXPECT_EQ(sum, static_cast<int64_t>(2 * prompt.size()));
  }
}

TEST(GoldenTrained, Stories260K) {
  BRIGADE_REQUIRE_SHARED_DATA(data);
  const std::string folder = data + "/checkpoints/stories260K/hf";
  const auto expected = read_json_file(folder + "/golden.json");
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto runner = open_runner(folder, {.threads = 2});
  ASSERT_NE(runner, nullptr);
  const std::vector<int32_t> prompt = (*expected)["prompt_ids"];
  const std::vector<int32_t> all = (*expected)["greedy_ids"];
  const std::vector<float> first = (*expected)["first_logits"];
  const auto rows = runner->feed(0, prompt, 64);
  ASSERT_TRUE(rows.ok()) << rows.status();
  // The file holds six digits.
  EXPECT_LE(row_difference((*rows)[0], first), kTolerance);
  std::vector<std::vector<float>> last_rows;
  const int count = static_cast<int>(all.size() - prompt.size());
  std::vector<int32_t> made = greedy(*runner, {prompt}, count, &last_rows)[0];
  made.insert(made.begin(), prompt.begin(), prompt.end());
  EXPECT_EQ(made, all);
}

// The committed demo model against a float64 forward of its bf16 weights.
TEST(GoldenTrained, DemoModel) {
  const std::string folder = tests::source_dir() + "/models/demo";
  const auto expected = read_json_file(folder + "/golden.json");
  ASSERT_TRUE(expected.ok()) << expected.status();
  std::map<std::string, std::unique_ptr<ModelRunner>> runners;
  ASSERT_FALSE((*expected)["cases"].empty());
  for (const json& one : (*expected)["cases"]) {
    auto& runner = runners[one["model"]];
    if (runner == nullptr) {
      runner = open_runner(folder + "/" + one["model"].get<std::string>(), {.threads = 2});
      ASSERT_NE(runner, nullptr);
    }
    const std::vector<int32_t> prompt = one["prompt_ids"], greedy_ids = one["greedy_ids"];
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), greedy_ids.begin(), greedy_ids.end());
    runner->restart(0);
    const auto rows = runner->feed(0, all, 64);
    ASSERT_TRUE(rows.ok()) << rows.status();
    for (size_t i = 0; i < greedy_ids.size(); ++i) {
      EXPECT_EQ(tests::argmax((*rows)[prompt.size() - 1 + i]), greedy_ids[i]) << "token " << i;
    }
    const std::vector<float>& last = rows->back();
    float largest = 0;
    for (float logit : last) largest = std::max(largest, std::fabs(logit));
    for (size_t i = 0; i < one["last_top8_ids"].size(); ++i) {
      EXPECT_NEAR(last[one["last_top8_ids"][i].get<int>()], one["last_top8_logits"][i].get<float>(),
                  kTolerance * largest);
    }
  }
}

}  // namespace
}  // namespace brigade::runtime
