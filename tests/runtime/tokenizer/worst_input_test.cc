// Long runs of one character class, for every pattern family, on a small stack: regular expression
// engines that recurse or retry have crashed or stalled whole servers here (ggml-org/llama.cpp pull
// 21257, issues 27783, 26965, 21919, 9715). Time per byte must stay flat.
#include <pthread.h>
#include <time.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/tokenizer/detokenizer.h"
#include "tests/runtime/tokenizer/variants.h"

namespace brigade::runtime {
namespace {

std::string repeat(const std::string& unit, size_t bytes) {
  std::string text;
  while (text.size() + unit.size() <= bytes) text += unit;
  return text;
}

struct Input {
  const char* name;
  std::function<std::string(size_t bytes)> make;
};

const std::vector<Input>& inputs() {
  const auto run = [](const char* unit) {
    return [unit](size_t bytes) { return repeat(unit, bytes); };
  };
  static const std::vector<Input> list = {
      {"A", run("A")},
      {"lower z", run("z")},
      {"mixed case", run("AaBbzZ")},
      {"digits", run("1234567890")},
      {"dots", run(".")},
      {"spaces", run(" ")},
      {"spaces, then x", [](size_t bytes) { return repeat(" ", bytes - 1) + "x"; }},
      {"newlines", run("\n")},
      {"newline space", run("\n ")},
      {"space x", run("  x")},
      {"apostrophes", run("'")},
      {"CJK", run("\u4e16\u754c")},
      {"kana", run("\u30ab\u304b")},
      {"marks out of order", run("\u0301\u0316")},
      {"ligatures", run("\ufdfa")},
      {"not UTF-8", run("\xFF\xC3")},
      {"not UTF-8 in letters", run("a\xFF ")},
      {"control token halves", run("<|end|<|begin|")},
      {"marks U+2581", run("\u2581")},
  };
  return list;
}

// Runs `work` on a thread with a 512 KiB stack.
void on_small_stack(const std::function<void()>& work) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 512 << 10), 0);
  pthread_t thread;
  const auto enter = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, enter, const_cast<std::function<void()>*>(&work)),
            0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

struct Measured {
  double seconds = 0;  // processor time, so that a busy machine does not count
  absl::Status status;
  bool round_trip = true;
};

// `lossless`: the tokenizer changes no text, so the tokens' bytes are the input's.
Measured measure(const Tokenizer& tokenizer, const std::string& text, bool lossless) {
  Measured result;
  on_small_stack([&] {
    const double start = thread_seconds();
    const auto ids = tokenizer.encode(text, {.add_special_tokens = false});
    result.seconds = thread_seconds() - start;
    result.status = ids.status();
    if (!ids.ok() || !lossless) return;
    std::string bytes;
    for (const int32_t id : *ids) bytes += tokenizer.token_bytes(id);
    result.round_trip = bytes == text;
  });
  return result;
}

// The limit is 1 s for 1 MB, asserted with a factor of 10 for slow machines and sanitizers.
void check_inputs(const Tokenizer& tokenizer, const std::string& name, bool lossless) {
  const size_t large = tests::is_long_run() ? 1 << 20 : 1 << 16;
  const size_t small = large / 16;
  const double limit = 10.0 * static_cast<double>(large) / (1 << 20);
  double worst = 0;
  const char* worst_input = "";
  for (const Input& input : inputs()) {
    SCOPED_TRACE(name + ", " + input.name);
    const Measured one = measure(tokenizer, input.make(small), lossless);
    const Measured sixteen = measure(tokenizer, input.make(large), lossless);
    EXPECT_TRUE(one.status.ok()) << one.status;
    EXPECT_TRUE(sixteen.status.ok()) << sixteen.status;
    EXPECT_TRUE(one.round_trip && sixteen.round_trip);
    EXPECT_LT(sixteen.seconds, limit);
    if (tests::is_long_run()) {
      std::printf("%-16s %-22s %7.1f ns/byte at %zu KiB, %7.1f at %zu KiB\n", name.c_str(),
                  input.name, one.seconds * 1e9 / small, small >> 10,
                  sixteen.seconds * 1e9 / large, large >> 10);
    }
    if (sixteen.seconds < worst) continue;
    worst = sixteen.seconds;
    worst_input = input.name;
  }
  std::printf("%-16s worst: %s, %.3f s for %zu KiB\n", name.c_str(), worst_input, worst, large >> 10);
}

struct Case {
  const char* variant;
  bool lossless;
};

class WorstInput : public testing::TestWithParam<Case> {};

TEST_P(WorstInput, TimePerByteIsFlat) {
  const auto tokenizer = tests::load_variant(GetParam().variant);
  ASSERT_NE(tokenizer, nullptr);
  check_inputs(*tokenizer, GetParam().variant, GetParam().lossless);
}

constexpr Case kCases[] = {
    {"gpt2", true},          {"no_pattern", true},     {"llama3", true},
    {"qwen2", false},        {"deepseek_v3", true},    {"deepseek_llm", true},
    {"deepseek_coder", true}, {"o200k", true},         {"falcon", true},
    {"neox", false},         {"nfkc", false},          {"replace_regex", false},
    {"mixtral", false},      {"metaspace_always", false}};

INSTANTIATE_TEST_SUITE_P(Committed, WorstInput, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.variant); });

// Real vocabularies: their tables do not fit in the caches.
TEST(WorstInputShared, TimePerByteIsFlat) {
  if (!tests::is_long_run()) GTEST_SKIP() << "skipped: long form only";
  BRIGADE_REQUIRE_SHARED_DATA(data);
  for (const std::string name : {"gpt2", "qwen3", "deepseek_v3"}) {
    const auto tokenizer = Tokenizer::load(data + "/tokenizers/" + name + "/tokenizer.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    check_inputs(**tokenizer, name, name != "qwen3");
  }
}

// Patterns outside the known families that retry: an error, not a stalled server.
TEST(WorstInput, CostlyPatternGivesUp) {
  std::vector<std::string> patterns = {"(a|a|a)*(a|a)*[bc]"};
  if (tests::is_long_run()) patterns.push_back("a+[bc]|a");
  for (const std::string& pattern : patterns) {
    SCOPED_TRACE(pattern);
    nlohmann::json change;
    change["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"Regex", pattern}}},
                               {"behavior", "Isolated"},
                               {"invert", false}};
    const auto tokenizer = tests::parse_or_fail(tests::changed_file("byte_level", change));
    ASSERT_NE(tokenizer, nullptr);
    const double start = thread_seconds();
    const auto ids = tokenizer->encode(repeat("a", 1 << 17));
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kResourceExhausted) << ids.status();
    EXPECT_LT(thread_seconds() - start, 60);
    std::printf("%-20s gave up after %.2f s\n", pattern.c_str(), thread_seconds() - start);
  }
}

TEST(WorstInput, LongerThanTheLimitIsRefused) {
  const auto tokenizer = tests::load_variant("gpt2");
  ASSERT_NE(tokenizer, nullptr);
  const auto ids = tokenizer->encode("12345678901", {.max_bytes = 10});
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().message(), "text of 11 bytes, limit is 10");
}

}  // namespace
}  // namespace brigade::runtime
