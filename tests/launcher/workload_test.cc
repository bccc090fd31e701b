// Prompt files and arrival traces as bench reads them.
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/bench/workload.h"

namespace brigade::tests {
namespace {

using launcher::read_workload;
using testing::HasSubstr;

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

v1::Model model_of(int64_t context) {
  v1::Model model;
  model.set_vocab_size(100);
  model.set_max_context(context);
  return model;
}

TEST(WorkloadTest, PromptsOfAllSpellings) {
  const auto arrivals = read_workload(
      {.prompts_file = write_file("p.jsonl",
                                  "{\"prompt\": \"a\"}\n\n{\"text\": \"b\"}\n"
                                  "{\"instruction\": \"c\"}\n{\"turns\": [\"d\", \"e\"]}\n")},
      model_of(100), {});
  ASSERT_TRUE(arrivals.ok()) << arrivals.status();
  std::string all;
  for (const auto& arrival : *arrivals) all += arrival.request.text();
  EXPECT_EQ(all, "abcd");
  const auto lines =
      read_workload({.prompts_file = write_file("p.txt", "one\ntwo\r\nthree\n"), .max_requests = 2},
                    model_of(9), {});
  ASSERT_TRUE(lines.ok());
  ASSERT_EQ(lines->size(), 2u);
  EXPECT_EQ((*lines)[1].request.text(), "two");
}

TEST(WorkloadTest, Traces) {
  const std::string csv = write_file("t.csv",
                                     "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                     "2023-11-16 18:15:46.6805900,37,4\n"
                                     "2023-11-16 18:15:50.9951690,3960,109\n");
  const auto arrivals = read_workload({.trace_file = csv}, model_of(64), {});
  ASSERT_TRUE(arrivals.ok()) << arrivals.status();
  ASSERT_EQ(arrivals->size(), 2u);
  EXPECT_EQ((*arrivals)[0].request.token_ids().ids_size(), 37);
  EXPECT_EQ((*arrivals)[0].request.max_tokens(), 4);
  EXPECT_NEAR(absl::ToDoubleSeconds((*arrivals)[1].at), 4.314579, 1e-6);
  // Cut to the context.
  const auto& large = (*arrivals)[1].request;
  EXPECT_EQ(large.token_ids().ids_size() + large.max_tokens(), 64);
  EXPECT_EQ(large.max_tokens(), 32);

  const std::string jsonl = write_file(
      "t.jsonl",
      "{\"timestamp\": 10, \"input_length\": 5, \"output_length\": 2, \"hash_ids\": [1]}\n"
      "{\"timestamp\": 260, \"input_length\": 6, \"output_length\": 3}\n");
  const auto mooncake = read_workload({.trace_file = jsonl, .max_requests = 5}, model_of(64), {});
  ASSERT_TRUE(mooncake.ok()) << mooncake.status();
  EXPECT_EQ((*mooncake)[1].at, absl::Milliseconds(250));
  EXPECT_EQ((*mooncake)[1].request.token_ids().ids_size(), 6);
}

TEST(WorkloadTest, BadFilesAreNamedWithTheirLine) {
  const auto complaint = [](const launcher::WorkloadOptions& options) {
    return std::string(read_workload(options, model_of(64), {}).status().message());
  };
  EXPECT_THAT(complaint({.prompts_file = "/none"}), HasSubstr("/none"));
  EXPECT_THAT(complaint({.prompts_file = write_file("b.jsonl", "{\"prompt\": \"a\"}\n[1]\n")}),
              HasSubstr("b.jsonl:2: not a JSON object"));
  EXPECT_THAT(complaint({.prompts_file = write_file("c.jsonl", "{\"x\": 1}\n")}),
              HasSubstr("c.jsonl:1: no field"));
  EXPECT_THAT(complaint({.trace_file = write_file("d.csv", "TIMESTAMP,a,b\nyesterday,1,2\n")}),
              HasSubstr("d.csv:2: expected"));
  EXPECT_THAT(complaint({.trace_file = write_file("e.jsonl", "{\"timestamp\": 1}\n")}),
              HasSubstr("input_length"));
  EXPECT_THAT(complaint({.prompts_file = write_file("f.txt", "\n\n")}), HasSubstr("no requests"));
}

}  // namespace
}  // namespace brigade::tests
