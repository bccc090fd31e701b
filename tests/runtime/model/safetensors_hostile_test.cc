#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/safetensors.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::raw_safetensors;

// Parses a file image as x.safetensors; the sentence when it is refused, "accepted" when not.
std::string outcome(const std::string& file) {
  const auto entries = parse_safetensors(file, "x.safetensors");
  if (entries.ok()) return "accepted";
  EXPECT_EQ(entries.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string sentence(entries.status().message());
  EXPECT_EQ(sentence.rfind("x.safetensors: ", 0), 0u) << sentence;
  EXPECT_LT(sentence.size(), 2000u);
  return sentence;
}

std::string one_tensor(const std::string& fields, size_t data_bytes = 16) {
  return raw_safetensors("{\"w\":{" + fields + "}}", std::string(data_bytes, '\0'));
}

std::string offsets(const std::string& values) {
  return outcome(one_tensor(R"("dtype":"F32","shape":[4],"data_offsets":)" + values));
}

TEST(SafetensorsHostile, AcceptsWhatTheFormatAllows) {
  const std::string good = one_tensor(R"("dtype":"F32","shape":[2,2],"data_offsets":[0,16])");
  const auto entries = parse_safetensors(good, "x.safetensors");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_EQ((*entries)[0].shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ((*entries)[0].end, good.size());
  EXPECT_EQ(outcome(raw_safetensors("{}", "")), "accepted");
  EXPECT_EQ(outcome(raw_safetensors("{\"__metadata__\":{\"format\":\"pt\"}}     ", "")),
            "accepted");
  EXPECT_EQ(outcome(raw_safetensors(R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},
      "b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}})",
                                    "xx")),
            "accepted");
}

// ztxz16/fastllm issue 712, paiml/aprender pull 1280, nntrainer/nntrainer issue 4334.
TEST(SafetensorsHostile, HeaderLengths) {
  const std::string header = "{}";
  EXPECT_THAT(outcome(raw_safetensors(UINT64_MAX, header, "")),
              HasSubstr("header length 18446744073709551615 exceeds the file's 10 bytes"));
  EXPECT_THAT(outcome(raw_safetensors(uint64_t{1} << 63, header, "")),
              HasSubstr("exceeds the file"));
  EXPECT_THAT(outcome(raw_safetensors(10 - 7, header, "")), HasSubstr("header length 3 exceeds"));
  EXPECT_THAT(outcome(raw_safetensors(0, header, "")), HasSubstr("does not start with {"));
  EXPECT_THAT(outcome(raw_safetensors(1, header, "")), HasSubstr("not valid JSON"));
  EXPECT_THAT(outcome(std::string("\1\0\0", 3)), HasSubstr("only 3 bytes"));
  EXPECT_THAT(outcome(""), HasSubstr("only 0 bytes"));
}

TEST(SafetensorsHostile, HeaderOverTheCapIsNotParsed) {
  const std::string spaces(101'000'000, ' ');
  const std::string file = raw_safetensors(spaces, "");
  const tests::Allocations before = tests::allocations();
  EXPECT_THAT(outcome(file), HasSubstr("header length 101000000 exceeds the limit of 100000000"));
  EXPECT_LT(tests::allocations().bytes - before.bytes, 100'000u);
}

TEST(SafetensorsHostile, Offsets) {
  EXPECT_EQ(offsets("[0,16]"), "accepted");
  EXPECT_THAT(offsets("[16,0]"), AllOf(HasSubstr("tensor \"w\""), HasSubstr("run backwards")));
  EXPECT_THAT(offsets("[0,9223372036854775808]"), HasSubstr("reach past the file"));
  EXPECT_THAT(offsets("[18446744073709551600,18446744073709551615]"), HasSubstr("reach past"));
  EXPECT_THAT(offsets("[0]"), HasSubstr("data_offsets has 1 numbers, not two"));
  EXPECT_THAT(offsets("[]"), HasSubstr("data_offsets has 0 numbers"));
  EXPECT_THAT(offsets("[0,8,16]"), HasSubstr("more than two numbers"));
  EXPECT_THAT(offsets("[-1,16]"), HasSubstr("data_offsets holds a negative number"));
  EXPECT_THAT(offsets("[0,16.0]"), HasSubstr("data_offsets holds a fraction"));
  EXPECT_THAT(offsets("[0,18446744073709551616]"), HasSubstr("data_offsets holds a fraction"));
  EXPECT_THAT(offsets("[0,\"16\"]"), HasSubstr("data_offsets holds a string"));
  EXPECT_THAT(offsets("[0,[16]]"), HasSubstr("data_offsets holds an array"));
  EXPECT_THAT(offsets("{\"a\":1}"), HasSubstr("an object where"));
  EXPECT_THAT(offsets("16"), HasSubstr("a number where"));
  EXPECT_THAT(offsets("[0,12]"),
              HasSubstr("shape [4] of F32 takes 16 bytes but data_offsets span 12"));
}

TEST(SafetensorsHostile, ShapesAndDtypes) {
  const auto shape = [](const std::string& values, size_t data_bytes = 16) {
    return outcome(one_tensor(R"("dtype":"F32","data_offsets":[0,)" + std::to_string(data_bytes) +
                                  R"(],"shape":)" + values,
                              data_bytes));
  };
  EXPECT_THAT(shape("[32,8]", 65536), HasSubstr("takes 1024 bytes but data_offsets span 65536"));
  EXPECT_THAT(shape("[4294967296,4294967296,4]"), HasSubstr("overflows"));
  EXPECT_THAT(shape("[9223372036854775807,2]"), HasSubstr("overflows"));
  EXPECT_THAT(shape("[18446744073709551615]"), HasSubstr("shape holds 18446744073709551615"));
  // A zero extent must not hide an overflow behind it, nor turn into one.
  EXPECT_THAT(shape("[0,9223372036854775807]"), HasSubstr("takes 0 bytes"));
  EXPECT_THAT(shape("[-4]"), HasSubstr("shape holds a negative number"));
  EXPECT_THAT(shape("[1,1,1,1,1,1,1,1,4]"), HasSubstr("more than 8 dimensions"));
  EXPECT_THAT(outcome(one_tensor(R"("dtype":"Q4_0","shape":[4],"data_offsets":[0,16])")),
              AllOf(HasSubstr("tensor \"w\""), HasSubstr("unknown dtype \"Q4_0\"")));
  EXPECT_THAT(outcome(one_tensor(R"("dtype":7,"shape":[4],"data_offsets":[0,16])")),
              HasSubstr("a number where dtype"));
  EXPECT_THAT(outcome(one_tensor(R"("dtype":"F32","shape":[4])")),
              HasSubstr("data_offsets is missing"));
  EXPECT_THAT(outcome(one_tensor(R"("shape":[4],"data_offsets":[0,16])")),
              HasSubstr("dtype is missing"));
  EXPECT_THAT(
      outcome(one_tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16],"stride":[1])")),
      HasSubstr("unknown key \"stride\""));
}

TEST(SafetensorsHostile, CoverOfTheData) {
  const auto two = [](const std::string& a, const std::string& b, size_t data_bytes) {
    return outcome(raw_safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + a +
                                       R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + b +
                                       "}}",
                                   std::string(data_bytes, '\0')));
  };
  EXPECT_EQ(two("[8,16]", "[0,8]", 16), "accepted");
  EXPECT_THAT(two("[0,8]", "[4,12]", 12), HasSubstr("\"a\" and \"b\" overlap at data byte 4"));
  EXPECT_THAT(two("[0,8]", "[0,8]", 8), HasSubstr("overlap"));
  EXPECT_THAT(two("[0,8]", "[12,20]", 20), HasSubstr("data bytes 8 to 12, before tensor \"b\""));
  EXPECT_THAT(two("[0,8]", "[8,16]", 24),
              HasSubstr("last 8 bytes of the file belong to no tensor"));
}

TEST(SafetensorsHostile, DuplicateAndOddKeys) {
  const std::string tensor = R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})";
  const std::string data(16, '\0');
  EXPECT_THAT(outcome(raw_safetensors("{\"w\":" + tensor + ",\"w\":" + tensor + "}", data)),
              HasSubstr("tensor \"w\" appears twice"));
  EXPECT_THAT(outcome(raw_safetensors("{\"__metadata__\":{},\"__metadata__\":{}}", "")),
              HasSubstr("__metadata__ appears twice"));
  EXPECT_THAT(outcome(raw_safetensors(R"({"__metadata__":{"a":"1","a":"2"}})", "")),
              HasSubstr("key \"a\" twice"));
  EXPECT_THAT(outcome(raw_safetensors(R"({"__metadata__":{"a":1}})", "")),
              HasSubstr("not a string"));
  EXPECT_THAT(
      outcome(one_tensor(R"("dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16])")),
      HasSubstr("key \"dtype\" twice"));
  EXPECT_THAT(outcome(raw_safetensors("{\"\":" + tensor + "}", data)), HasSubstr("without a name"));
  EXPECT_THAT(outcome(raw_safetensors("{\"" + std::string(5000, 'n') + "\":" + tensor + "}", data)),
              HasSubstr("a key of 5000 bytes"));
  EXPECT_THAT(outcome(raw_safetensors("{\"w\":" + tensor + "} {}", data)),
              HasSubstr("not valid JSON"));
  EXPECT_THAT(outcome(raw_safetensors("{\"w\":1e999}", "")), HasSubstr("not valid JSON"));
  EXPECT_THAT(outcome(raw_safetensors("{\"w\":\"\xff\"}", "")), HasSubstr("not valid JSON"));
}

// ggml-org/llama.cpp pull 27434: nesting must cost neither stack nor memory.
TEST(SafetensorsHostile, DeepNestingEndsAtOnce) {
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  const std::string arrays = "{\"w\":" + std::string(100'000, '[');
  tests::reset_largest_allocation();
  EXPECT_THAT(outcome(raw_safetensors(objects, "")), HasSubstr("unknown key \"a\""));
  EXPECT_THAT(outcome(raw_safetensors(arrays, "")), HasSubstr("an array where an object"));
  EXPECT_THAT(outcome(raw_safetensors("{\"w\":{\"shape\":" + std::string(100'000, '[') + "}}", "")),
              HasSubstr("shape holds an array"));
  EXPECT_LT(tests::allocations().largest, 1'100'000u);  // the test's own copies of the text
}

// A header may claim anything; only what the file really holds may cost memory.
TEST(SafetensorsHostile, ClaimsCostNoMemory) {
  const std::string huge = one_tensor(
      R"("dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,4611686018427387904])");
  tests::reset_largest_allocation();
  EXPECT_THAT(outcome(huge), HasSubstr("reach past the file"));
  EXPECT_LT(tests::allocations().largest, 100'000u);
}

}  // namespace
}  // namespace brigade::runtime
