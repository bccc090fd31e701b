// Streaming text: no half characters, nothing lost, equal to decoding at once; and round trips.
#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/tokenizer/detokenizer.h"
#include "runtime/tokenizer/utf8.h"
#include "tests/runtime/tokenizer/variants.h"

namespace brigade::runtime {
namespace {

using testing::ElementsAre;

// Ids of single bytes in a byte-level vocabulary, or of <0x..> in one with byte fallback.
std::vector<int32_t> byte_ids(const Tokenizer& tokenizer, const std::string& bytes) {
  std::vector<int32_t> ids;
  for (const char c : bytes) {
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.token_bytes(id) != std::string(1, c)) continue;
      ids.push_back(id);
      break;
    }
  }
  EXPECT_EQ(ids.size(), bytes.size());
  return ids;
}

std::vector<std::string> stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                const DecodeOptions& options = {}) {
  IncrementalDetokenizer detokenizer(tokenizer, options);
  std::vector<std::string> chunks;
  for (const int32_t id : ids) chunks.push_back(detokenizer.push(id));
  chunks.push_back(detokenizer.flush());
  EXPECT_EQ(detokenizer.flush(), "");
  return chunks;
}

std::string joined(const std::vector<std::string>& chunks) {
  std::string text;
  for (const std::string& chunk : chunks) text += chunk;
  return text;
}

// exo-explore/exo pull 1691, waybarrios/vllm-mlx pull 109, Blaizzy/mlx-vlm issue 1665.
TEST(Detokenizer, ACharacterOverSeveralTokens) {
  const auto tokenizer = tests::load_variant("gpt2");
  EXPECT_THAT(stream(*tokenizer, byte_ids(*tokenizer, "\xF0\x9F\x98\x80 a")),
              ElementsAre("", "", "", "\U0001F600", " ", "a", ""));
}

TEST(Detokenizer, ALoneLeadByteBecomesOneReplacement) {
  const auto tokenizer = tests::load_variant("gpt2");
  EXPECT_THAT(stream(*tokenizer, byte_ids(*tokenizer, "\xC4 a")),
              ElementsAre("", "\uFFFD ", "a", ""));
}

TEST(Detokenizer, AnUnfinishedCharacterIsFlushedByTheSameRule) {
  const auto tokenizer = tests::load_variant("gpt2");
  const auto ids = byte_ids(*tokenizer, "a\xF0\x9F");
  EXPECT_THAT(stream(*tokenizer, ids), ElementsAre("a", "", "", "\uFFFD"));
  EXPECT_EQ(tokenizer->decode(ids), "a\uFFFD");
}

// cactus-compute/cactus issue 684: byte pieces must not show as "<0xEA>".
TEST(Detokenizer, ByteFallbackPiecesJoin) {
  const auto tokenizer = tests::load_variant("mixtral");
  const auto ids = byte_ids(*tokenizer, "\xEA\xB9\x80");
  EXPECT_EQ(tokenizer->decode(ids), "\uAE40");
  EXPECT_THAT(stream(*tokenizer, ids), ElementsAre("", "", "\uAE40", ""));
  const std::vector<int32_t> cut(ids.begin(), ids.end() - 1);
  EXPECT_EQ(tokenizer->decode(cut), "\uFFFD");
  EXPECT_THAT(stream(*tokenizer, cut), ElementsAre("", "", "\uFFFD"));
}

TEST(Detokenizer, ASkippedTokenDoesNotSplitACharacter) {
  const auto tokenizer = tests::load_variant("gpt2");
  auto ids = byte_ids(*tokenizer, "\xC3\xA9");
  ids.insert(ids.begin() + 1, *tokenizer->token_id("<|end|>"));
  EXPECT_THAT(stream(*tokenizer, ids), ElementsAre("", "", "\u00e9", ""));
  EXPECT_THAT(stream(*tokenizer, ids, {.skip_special = false}),
              ElementsAre("", "\uFFFD<|end|>", "\uFFFD", ""));
}

// The space that SentencePiece puts before a text is not part of it; one after a prompt is.
TEST(Detokenizer, LeadingSpaceDependsOnWhatComesBefore) {
  for (const std::string name : {"mixtral", "metaspace_always"}) {
    const auto tokenizer = tests::load_variant(name);
    const auto ids = *tokenizer->encode("hello world", {.add_special_tokens = false});
    EXPECT_EQ(joined(stream(*tokenizer, ids)), "hello world");
    EXPECT_EQ(joined(stream(*tokenizer, ids, {.starts_text = false})), " hello world");
    EXPECT_EQ(tokenizer->decode(ids, {.starts_text = false}), " hello world");
  }
}

TEST(Detokenizer, IdsOutsideTheVocabularyShow) {
  const auto tokenizer = tests::load_variant("gpt2");
  const std::vector<int32_t> ids = {-1, 1 << 30};
  EXPECT_EQ(tokenizer->decode(ids), "\uFFFD\uFFFD");
  EXPECT_EQ(joined(stream(*tokenizer, ids)), "\uFFFD\uFFFD");
}

TEST(Detokenizer, RandomIdsStreamLikeDecode) {
  const uint64_t seed = tests::test_seed();
  SCOPED_TRACE(tests::replay_note("tokenizer_detokenizer_test", seed));
  std::mt19937_64 random(seed);
  for (const std::string name : {"gpt2", "mixtral", "metaspace_always", "unknown_fused"}) {
    const auto tokenizer = tests::load_variant(name);
    for (int round = 0; round < tests::scaled(2000, 100); ++round) {
      std::vector<int32_t> ids(random() % 12);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % (tokenizer->vocab_size() + 1));
      const DecodeOptions options{.skip_special = random() % 2 == 0, .starts_text = random() % 2 == 0};
      const auto chunks = stream(*tokenizer, ids, options);
      ASSERT_EQ(joined(chunks), tokenizer->decode(ids, options)) << name;
      for (const std::string& chunk : chunks) ASSERT_TRUE(is_valid_utf8(chunk)) << name;
    }
  }
}

std::string random_bytes(std::mt19937_64* random, bool text_like) {
  static const std::vector<std::string> parts = {
      "a", "Z", " ", "  ", "\n", "\r\n", "7", ".", "'s", "\u00e9", "e\u0301", "\u4e16", "\U0001F600",
      "\xFF", "\xC3", "\xF0\x9F", "\x80", "\xED\xA0\x80", "<|end|>", "\u00a0", "\u200b", "hello"};
  std::string bytes;
  for (size_t count = (*random)() % 40; count > 0; --count) {
    bytes += text_like ? parts[(*random)() % parts.size()]
                       : std::string(1, static_cast<char>((*random)() % 256));
  }
  return bytes;
}

TEST(RoundTrip, RandomBytesComeBack) {
  const uint64_t seed = tests::test_seed();
  SCOPED_TRACE(tests::replay_note("tokenizer_detokenizer_test", seed));
  std::mt19937_64 random(seed);
  for (const std::string name : {"gpt2", "no_pattern", "llama3", "deepseek_v3", "deepseek_llm", "o200k", "falcon"}) {
    const auto tokenizer = tests::load_variant(name);
    for (int round = 0; round < tests::scaled(1000, 100); ++round) {
      const std::string bytes = random_bytes(&random, round % 2 == 0);
      const auto ids = tokenizer->encode(bytes, {.add_special_tokens = false});
      ASSERT_TRUE(ids.ok()) << ids.status();
      std::string back;
      for (const int32_t id : *ids) back += tokenizer->token_bytes(id);
      ASSERT_EQ(back, bytes) << name;
      ASSERT_EQ(tokenizer->decode(*ids), replace_invalid_utf8(bytes)) << name;
    }
  }
}

TEST(RoundTrip, RandomBytesComeBackThroughByteFallback) {
  const uint64_t seed = tests::test_seed();
  SCOPED_TRACE(tests::replay_note("tokenizer_detokenizer_test", seed));
  std::mt19937_64 random(seed);
  const auto tokenizer = tests::load_variant("mixtral");
  for (int round = 0; round < tests::scaled(2000, 100); ++round) {
    std::string bytes = random_bytes(&random, round % 2 == 0);
    const auto ids = tokenizer->encode(bytes);
    ASSERT_TRUE(ids.ok()) << ids.status();
    ASSERT_EQ(tokenizer->decode(*ids), replace_invalid_utf8(bytes));
  }
}

// Unicode 3.9, table 3-8: one replacement for each maximal subpart.
TEST(Utf8, InvalidBytesFollowOneRule) {
  EXPECT_EQ(replace_invalid_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(settled_utf8_prefix("a\xF0\x9F"), 1u);
  EXPECT_EQ(settled_utf8_prefix("a\xF0\x9F\x98\x80"), 5u);
  EXPECT_EQ(settled_utf8_prefix("\x80\x80"), 2u);
}

TEST(Threads, OneTokenizerServesMany) {
  const auto tokenizer = tests::load_variant("llama3");
  const auto texts = tests::cases().at("texts").get<std::vector<std::string>>();
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& text : texts) expected.push_back(*tokenizer->encode(text));
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < texts.size(); ++i) {
        equal[t] += *tokenizer->encode(texts[i]) == expected[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : equal) EXPECT_EQ(count, static_cast<int>(texts.size()));
}

}  // namespace
}  // namespace brigade::runtime
