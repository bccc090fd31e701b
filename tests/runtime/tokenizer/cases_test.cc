// Small committed tokenizers in many variants against the tokenizers library: ids, and decoded texts.
// tools/golden/make_tokenizer_cases.py writes the data.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/tokenizer/detokenizer.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/runtime/tokenizer/variants.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;
using tests::cases;
using testing::ElementsAreArray;

std::string stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   const DecodeOptions& options) {
  IncrementalDetokenizer detokenizer(tokenizer, options);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.flush();
}

void check_text(const Tokenizer& tokenizer, const std::string& text, const json& expected) {
  const auto plain_ids = expected.at("plain").get<std::vector<int32_t>>();
  const auto all_ids = expected.value("ids", plain_ids);
  const std::string decoded = expected.value("decoded", text);
  const std::string decoded_all = expected.value("decoded_all", decoded);

  const auto plain = tokenizer.encode(text, {.add_special_tokens = false});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_THAT(*plain, ElementsAreArray(plain_ids));
  const auto all = tokenizer.encode(text, {.parse_control_tokens = true});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(*all, ElementsAreArray(all_ids));

  EXPECT_EQ(tokenizer.decode(plain_ids), decoded);
  EXPECT_EQ(tokenizer.decode(all_ids, {.skip_special = false}), decoded_all);
  EXPECT_EQ(stream(tokenizer, plain_ids, {}), decoded);
  EXPECT_EQ(stream(tokenizer, all_ids, {.skip_special = false}), decoded_all);
}

class Cases : public testing::TestWithParam<size_t> {};

TEST_P(Cases, LikeTheLibrary) {
  const json& variant = cases().at("variants").at(GetParam());
  const auto tokenizer = Tokenizer::parse(tests::variant_file(variant).dump(), "variant");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  auto texts = cases().at("texts").get<std::vector<std::string>>();
  if (variant.at("extra_texts").get<bool>()) {
    const auto extra = cases().at("extra_texts").get<std::vector<std::string>>();
    texts.insert(texts.end(), extra.begin(), extra.end());
  }
  const json& results = variant.at("results");
  ASSERT_EQ(results.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE("text " + std::to_string(i) + ": [" + texts[i] + "]");
    check_text(**tokenizer, texts[i], results[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Committed, Cases, testing::Range<size_t>(0, cases().at("variants").size()),
                         [](const auto& info) {
                           return cases().at("variants").at(info.param).at("name").template get<std::string>();
                         });

}  // namespace
}  // namespace brigade::runtime
