#include "runtime/files/json.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace brigade::runtime {
namespace {

using ::testing::HasSubstr;

TEST(Json, ReadsAnObject) {
  auto value = parse_json(R"({"a": [1, 2.5, "x"], "b": {"c": null}})", "test");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ((*value)["a"][2], "x");
}

// Reported as ggml-org/llama.cpp pull 27434, nlohmann/json issue 5387: deep nesting crashed the parser.
TEST(Json, RefusesDeepNestingAtTheLimit) {
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']'), "test").ok());
  auto deep = parse_json(std::string(100000, '['), "config.json");
  ASSERT_FALSE(deep.ok());
  EXPECT_THAT(std::string(deep.status().message()), HasSubstr("config.json: nested deeper than 64"));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_THAT(std::string(parse_json(objects, "x").status().message()), HasSubstr("nested deeper"));
}

TEST(Json, RefusesDuplicateKeysButNotTheSameKeyInTwoObjects) {
  EXPECT_TRUE(parse_json(R"([{"a":1},{"a":1}])", "test").ok());
  auto twice = parse_json(R"({"a":1,"b":{"k":1,"k":2}})", "test");
  ASSERT_FALSE(twice.ok());
  EXPECT_THAT(std::string(twice.status().message()), HasSubstr("\"k\" appears twice"));
}

TEST(Json, RefusesTextAfterTheValueAndOversizedInput) {
  EXPECT_FALSE(parse_json("{} {}", "test").ok());
  EXPECT_FALSE(parse_json("", "test").ok());
  EXPECT_FALSE(parse_json("[1,2,3]", "test", {.max_bytes = 3}).ok());
}

TEST(Json, NamesAMissingFile) {
  auto missing = read_json_file("/nonexistent/config.json");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/nonexistent/config.json"));
}

}  // namespace
}  // namespace brigade::runtime
