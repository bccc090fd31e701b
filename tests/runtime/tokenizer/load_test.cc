// What a tokenizer.json may hold: spellings that mean the same, and everything that must be refused
// with its place named.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/tokenizer/variants.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using tests::changed_file;
using tests::parse_or_fail;

json added_token(int id, const std::string& content, bool special) {
  return {{"id", id},         {"content", content}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// robertknight/rten pull 392 and crusoecloud/fastokens pull 11: merges are written both ways.
TEST(Merges, PairsAndStringsAreTheSame) {
  json file = tests::read_case_file("byte_level.json");
  const auto original = parse_or_fail(file);
  json changed = json::array();
  for (const auto& merge : file["model"]["merges"]) {
    if (merge.is_array()) {
      changed.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    } else {
      const auto text = merge.get<std::string>();
      const size_t space = text.find(' ');
      changed.push_back(json::array({text.substr(0, space), text.substr(space + 1)}));
    }
  }
  ASSERT_GT(changed.size(), 100u);
  file["model"]["merges"] = changed;
  const auto other = parse_or_fail(file);
  for (const auto& text : tests::cases().at("texts")) {
    EXPECT_EQ(*original->encode(text.get<std::string>()), *other->encode(text.get<std::string>()));
  }
  EXPECT_EQ(original->vocabulary_hash(), other->vocabulary_hash());
}

json spaced_model() {
  return json::parse(R"({"model": {"vocab": {"a": 0, " ": 1, "b": 2, " a": 3, "a b": 4, " b": 5},
      "merges": [[" ", "b"], ["a", " b"]]}})");
}

json tiny_file(const json& model) {
  return {{"version", "1.0"}, {"model", model}, {"decoder", {{"type", "Fuse"}}}};
}

TEST(Merges, ATokenMayHoldASpace) {
  const auto tokenizer = parse_or_fail(tiny_file(spaced_model()["model"]));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->encode("a b"), ElementsAre(4));
  EXPECT_THAT(*tokenizer->encode("b a"), ElementsAre(2, 1, 0));
}

// robertknight/rten issue 453: a word of the vocabulary that merges would never build.
TEST(Merges, IgnoreMergesTakesTheWholeWord) {
  json model = spaced_model()["model"];
  model["vocab"]["bab"] = 6;
  EXPECT_THAT(*parse_or_fail(tiny_file(model))->encode("bab"), ElementsAre(2, 0, 2));
  model["ignore_merges"] = true;
  EXPECT_THAT(*parse_or_fail(tiny_file(model))->encode("bab"), ElementsAre(6));
  EXPECT_THAT(*parse_or_fail(tiny_file(model))->encode("baba"), ElementsAre(2, 0, 2, 0));
}

TEST(Text, ACharacterOutsideTheVocabularyIsAnErrorNotLost) {
  const auto tokenizer = parse_or_fail(tiny_file(spaced_model()["model"]));
  const auto ids = tokenizer->encode("a\u00e9");
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ids.status().message(),
            "text holds the character U+00E9, which the vocabulary cannot express");
}

struct Refusal {
  const char* name;
  const char* base;
  json change;
  const char* message;
};

std::vector<Refusal> refusals() {
  const auto pre = [](const char* text) { return json{{"pre_tokenizer", json::parse(text)}}; };
  const auto norm = [](const char* text) { return json{{"normalizer", json::parse(text)}}; };
  const auto post = [](const char* text) { return json{{"post_processor", json::parse(text)}}; };
  const auto decode = [](const char* text) { return json{{"decoder", json::parse(text)}}; };
  const auto model = [](const char* text) { return json{{"model", json::parse(text)}}; };
  const auto pattern = [](const std::string& regex) {
    return json{{"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", regex}}},
                                   {"behavior", "Isolated"}, {"invert", false}}}};
  };
  const char* b = "byte_level";
  const char* s = "sentencepiece";
  return {
      {"MalformedMerge", b, model(R"({"merges": ["a b", "h e l"]})"), "model.merges[0]"},
      {"MergeOfThree", b, model(R"({"merges": [["h", "e"], ["a", "b", "c"]]})"), "model.merges[1]"},
      {"MergeOfNumbers", b, model(R"({"merges": [[1, 2]]})"), "model.merges[0]"},
      {"MergeOutsideVocab", b, model(R"({"merges": [["h", "e"], ["zz", "q"]]})"), "\"zz\" is not in vocab"},
      {"NoMerges", b, model(R"({"merges": null})"), "\"merges\" must be an array"},
      {"Unigram", b, model(R"({"type": "Unigram"})"), "model type \"Unigram\""},
      {"Dropout", b, model(R"({"dropout": 0.1})"), "dropout"},
      {"WordSuffix", b, model(R"({"end_of_word_suffix": "</w>"})"), "end_of_word_suffix"},
      {"UnknownModelKey", b, model(R"({"fast_mode": true})"), "unknown key \"fast_mode\""},
      {"NegativeId", b, model(R"({"vocab": {"a": -1}})"), "\"a\" must have an id from 0"},
      {"HugeId", b, model(R"({"vocab": {"a": 2147483647}})"), "\"a\" must have an id from 0"},
      {"WrappingId", b, model(R"({"vocab": {"a": 18446744073709551615}})"), "\"a\" must have an id"},
      {"FractionalId", b, model(R"({"vocab": {"a": 1.5}})"), "\"a\" must have an id from 0"},
      {"IdTwice", b, model(R"({"vocab": {"y": 5, "zzz": 5}})"), "vocab gives id 5 to both"},
      {"NoUnknown", s, model(R"({"unk_token": "<nope>"})"), "unk_token \"<nope>\" is not in vocab"},
      {"ModelIsAList", b, {{"vocab_size", 3}}, "unknown key \"vocab_size\""},
      {"AddedNotList", b, {{"added_tokens", 3}}, "added_tokens: must be an array"},
      {"AddedTwice", b, {{"added_tokens", {added_token(500, "<x>", true), added_token(501, "<x>", true)}}},
       "added_tokens[1]: content appears twice"},
      {"AddedSameId", b, {{"added_tokens", {added_token(500, "<x>", true), added_token(500, "<y>", true)}}},
       "added_tokens[1]: id 500 appears twice"},
      {"AddedTakesAnId", b, {{"added_tokens", {added_token(7, "<x>", true)}}}, "id 7 belongs to another"},
      {"AddedMovesAToken", b, {{"added_tokens", {added_token(999, "<|end|>", true)}}}, "vocab gives it 0"},
      {"AddedHugeId", b, {{"added_tokens", {added_token(4000000, "<x>", true)}}}, "id must be at most"},
      {"AddedEmpty", b, {{"added_tokens", {added_token(500, "", true)}}}, "content of 0 bytes"},
      {"AddedLong", b, {{"added_tokens", {added_token(500, std::string(10 << 20, 'x'), true)}}}, "content of"},
      {"NormBert", b, norm(R"({"type": "BertNormalizer"})"), "normalizer type \"BertNormalizer\""},
      {"NormKey", b, norm(R"({"type": "NFC", "x": 1})"), "normalizer: unknown key \"x\""},
      {"NormNested", b, norm(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]})"),
       "normalizer.normalizers[1]: normalizer type \"Nmt\""},
      {"PreBert", b, pre(R"({"type": "BertPreTokenizer"})"), "pre-tokenizer type \"BertPreTokenizer\""},
      {"PreNoType", b, pre(R"({"use_regex": true})"), "pre_tokenizer: key \"type\""},
      {"PreNumber", b, pre("3"), "pre_tokenizer: must be an object"},
      {"PreBehavior", b, pre(R"({"type": "Split", "pattern": {"String": " "}, "behavior": "Odd"})"),
       "split behavior \"Odd\""},
      {"PreNoPattern", b, pre(R"({"type": "Split", "behavior": "Isolated"})"), "\"pattern\" is missing"},
      {"PreScheme", b, pre(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})"),
       "prepend_scheme \"last\""},
      {"PatternBroken", b, pattern("(a"), "pattern does not compile"},
      {"PatternIntersection", b, pattern("[a-z&&[^b]]"), "&& (class intersection) at offset 4"},
      {"PatternNestedClass", b, pattern("[a[bc]]"), "a class inside a class"},
      {"PatternBackReference", b, pattern("(a)\\1"), "\\1 at offset 3"},
      {"PatternRecursion", b, pattern("(?R)"), "group option"},
      {"PatternRepeatedCount", b, pattern("\\p{N}{1,3}+"), "}+"},
      {"PatternProperty", b, pattern("\\p{Klingon}+"), "pattern does not compile"},
      {"PatternLarge", b, pattern("(?:(?:(?:(?:a{1,900}){1,900}){1,900}){1,900})"), "pattern"},
      {"PatternDeep", b, pattern(std::string(8000, '(') + "a" + std::string(8000, ')')), "pattern"},
      {"PatternLong", b, pattern(std::string(1 << 20, 'a')), "pattern of 1048576 bytes"},
      {"PostBert", b, post(R"({"type": "BertProcessing", "sep": ["x", 1], "cls": ["y", 2]})"),
       "post-processor type \"BertProcessing\""},
      {"PostId", b, post(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>",
          "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens":
          {"<s>": {"id": "<s>", "ids": [900000], "tokens": ["<s>"]}}})"),
       "post_processor: id 900000 is not in the vocabulary"},
      {"PostNoText", b, post(R"({"type": "TemplateProcessing", "single": [], "special_tokens": {}})"),
       "has no sequence A"},
      {"DecoderMissing", b, decode("null"), "decoder: is null"},
      {"DecoderWordPiece", b, decode(R"({"type": "WordPiece"})"), "decoder type \"WordPiece\""},
      {"DecoderAfterFuse", b, decode(R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
          {"type": "ByteFallback"}]})"), "after Fuse"},
      {"DecoderTrailingStrip", b, decode(R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
          {"type": "Strip", "content": " ", "start": 0, "stop": 1}]})"), "end of the text"},
  };
}

class Refused : public testing::TestWithParam<size_t> {};

TEST_P(Refused, NamesThePlace) {
  const Refusal refusal = refusals()[GetParam()];
  const std::string text = changed_file(refusal.base, refusal.change).dump();
  const auto tokenizer = Tokenizer::parse(text, "x/tokenizer.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(tokenizer.status().message());
  EXPECT_THAT(message, HasSubstr("x/tokenizer.json: "));
  EXPECT_THAT(message, HasSubstr(refusal.message));
  EXPECT_LT(message.size(), 400u);
}

INSTANTIATE_TEST_SUITE_P(Files, Refused, testing::Range<size_t>(0, refusals().size()),
                         [](const auto& info) { return std::string(refusals()[info.param].name); });

// ggml-org/llama.cpp pull 27434, antirez/ds4 issue 43: deep nesting must not reach a recursion.
TEST(Hostile, DeepNestingIsRefused) {
  std::string deep_list = "{\"model\": " + std::string(100000, '[');
  EXPECT_THAT(std::string(Tokenizer::parse(deep_list, "t").status().message()), HasSubstr("deeper"));
  std::string deep_steps;
  for (int i = 0; i < 100; ++i) deep_steps += R"({"type": "Sequence", "normalizers": [)";
  EXPECT_THAT(std::string(Tokenizer::parse("{\"normalizer\": " + deep_steps, "t").status().message()),
              HasSubstr("deeper"));
}

TEST(Hostile, DuplicateKeysTruncationAndGarbageAreRefused) {
  EXPECT_THAT(std::string(Tokenizer::parse(R"({"model": 1, "model": 2})", "t").status().message()),
              HasSubstr("appears twice"));
  const std::string good = tests::read_case_file("byte_level.json").dump();
  for (size_t size = 0; size < good.size(); size += 97) {
    EXPECT_FALSE(Tokenizer::parse(good.substr(0, size), "t").ok()) << size;
  }
  EXPECT_FALSE(Tokenizer::parse("[]", "t").ok());
  EXPECT_FALSE(Tokenizer::parse("{}", "t").ok());
  EXPECT_EQ(Tokenizer::load("/nonexistent/tokenizer.json").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(VocabularyHash, TellsTokenizersApart) {
  const auto base = parse_or_fail(tests::read_case_file("byte_level.json"));
  const auto same = parse_or_fail(tests::read_case_file("byte_level.json"));
  EXPECT_EQ(base->vocabulary_hash(), same->vocabulary_hash());
  EXPECT_EQ(base->first_difference(*same), std::nullopt);

  json swapped = tests::read_case_file("byte_level.json");
  swapped["model"]["vocab"]["a"] = *base->token_id("b");
  swapped["model"]["vocab"]["b"] = *base->token_id("a");
  const auto other = parse_or_fail(swapped);
  EXPECT_NE(base->vocabulary_hash(), other->vocabulary_hash());
  EXPECT_EQ(base->first_difference(*other), std::min(*base->token_id("a"), *base->token_id("b")));

  const json change = {{"added_tokens", {added_token(0, "<|end|>", true), added_token(490, "<x>", true)}}};
  const auto longer = parse_or_fail(changed_file("byte_level", change));
  EXPECT_NE(base->vocabulary_hash(), longer->vocabulary_hash());
  EXPECT_EQ(base->first_difference(*longer), base->vocab_size());
  EXPECT_EQ(longer->vocab_size(), 491);
  EXPECT_FALSE(longer->is_token(base->vocab_size()));
}

}  // namespace
}  // namespace brigade::runtime
