// The brigade-model binary as a user calls it: output and exit codes.

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/test_env.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::string output;
};

Outcome run(const std::string& arguments, const char* redirect = "2>&1") {
  Outcome result;
  const std::string command = std::string(BRIGADE_MODEL_BINARY) + " " + arguments + " " + redirect;
  FILE* pipe = ::popen(command.c_str(), "r");
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    result.output.append(buffer, n);
  const int status = ::pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

TEST(Inspect, PrintsATableAndJson) {
  const std::string folder = tests::source_dir() + "/tests/data/golden/mixtral_sharded_bf16";
  const Outcome table = run("inspect " + folder);
  EXPECT_EQ(table.exit_code, 0) << table.output;
  EXPECT_THAT(table.output,
              AllOf(HasSubstr("mixtral"), HasSubstr("softmax over 8 experts, top 2"),
                    HasSubstr("in 3 files"), HasSubstr("end-of-sequence ids"), HasSubstr("note: "),
                    HasSubstr("left alone: golden.safetensors")));
  const Outcome json = run("inspect --json " + folder, "2>/dev/null");
  EXPECT_EQ(json.exit_code, 0) << json.output;
  const auto value = nlohmann::json::parse(json.output, nullptr, false);
  ASSERT_TRUE(value.is_object()) << json.output;
  EXPECT_EQ(value["experts_per_token"], 2);
  EXPECT_EQ(value["weight_dtypes"], nlohmann::json::array({"BF16"}));
}

TEST(Inspect, RefusesWithOneSentenceAndExitCode2) {
  const tests::ModelFolder folder;
  const auto refused = [&] {
    const Outcome result = run("inspect " + folder.path());
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
    return result.output;
  };
  EXPECT_THAT(refused(), HasSubstr("config.json: no such file"));
  nlohmann::json config = tests::tiny_llama_config();
  config["hidden_act"] = "gelu";
  folder.write_json("config.json", config);
  EXPECT_THAT(refused(), HasSubstr("hidden_act \"gelu\""));
  folder.write_json("config.json", tests::tiny_llama_config());
  EXPECT_THAT(refused(), HasSubstr("present: none"));
  auto tensors = tests::tiny_llama_tensors();
  tensors.erase("model.norm.weight");
  folder.write("model.safetensors", tests::safetensors_bytes(tensors));
  EXPECT_THAT(refused(), HasSubstr("missing: model.norm.weight"));
}

TEST(Inspect, HelpAndMistakesOnTheCommandLine) {
  EXPECT_EQ(run("--help").exit_code, 0);
  EXPECT_THAT(run("--help").output, AllOf(HasSubstr("inspect"), HasSubstr("Examples:")));
  EXPECT_EQ(run("").exit_code, 2);
  EXPECT_EQ(run("inspect").exit_code, 2);
  EXPECT_EQ(run("inspect --yaml x").exit_code, 2);
}

}  // namespace
}  // namespace brigade::runtime
