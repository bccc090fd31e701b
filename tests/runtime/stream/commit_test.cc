#include "runtime/stream/commit.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace brigade::runtime {
namespace {

// A byte-level tokenizer with the given pieces as ids 0, 1, ... (ASCII letters map to themselves).
std::unique_ptr<Tokenizer> tokenizer_of(const std::vector<std::string>& pieces) {
  nlohmann::json file = {
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true},
                         {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", nlohmann::json::object()},
                 {"merges", nlohmann::json::array()}}}};
  for (size_t id = 0; id < pieces.size(); ++id) file["model"]["vocab"][pieces[id]] = id;
  auto tokenizer = Tokenizer::parse(file.dump(), "test tokenizer");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

GenerateRequest request_of(int max_tokens) {
  GenerateRequest request;
  request.prompt = {0};
  request.max_tokens = max_tokens;
  return request;
}

struct Shown {
  std::string text;
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  std::string stop_match;
  int32_t stop_token = -1;
};

// Commits tokens until the sequence ends or they run out.
Shown commit_all(SequenceOutput* output, const std::vector<int32_t>& tokens) {
  Shown shown;
  for (const int32_t token : tokens) {
    if (output->finished()) break;
    const TokenEvent event = output->commit_token(token, std::nullopt);
    shown.text += event.text;
    shown.tokens.push_back(*event.token);
    shown.finish = event.finish;
    shown.stop_match = event.stop_match;
    shown.stop_token = event.stop_token;
  }
  return shown;
}

class LettersTest : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = tokenizer_of({"AB", "CD", "EF", "G", "x"});
};

// vllm-project/vllm issue 3574.
TEST_F(LettersTest, AStopStringAcrossTokens) {
  GenerateRequest request = request_of(10);
  request.stop.strings = {"DEFG"};
  SequenceOutput output(request, 0, {}, tokenizer_.get());
  const Shown shown = commit_all(&output, {0, 1, 2, 3, 4});
  EXPECT_EQ(shown.text, "ABC");
  EXPECT_EQ(shown.finish, FinishReason::kStop);
  EXPECT_EQ(shown.stop_match, "DEFG");
  EXPECT_EQ(output.tokens().size(), 4u);

  request.stop.include_stop = true;
  SequenceOutput with_stop(request, 0, {}, tokenizer_.get());
  EXPECT_EQ(commit_all(&with_stop, {0, 1, 2, 3, 4}).text, "ABCDEFG");

  request.stop.strings = {"DEX"};
  request.max_tokens = 4;
  SequenceOutput mismatch(request, 0, {}, tokenizer_.get());
  const Shown all = commit_all(&mismatch, {0, 1, 2, 3});
  EXPECT_EQ(all.text, "ABCDEFG");
  EXPECT_EQ(all.finish, FinishReason::kLength);
}

// vllm-project/vllm issue 21987: a second EOS id, a stop id or a stop string ended it below min_tokens.
TEST_F(LettersTest, MinTokensHoldsOffEveryKindOfEnd) {
  GenerateRequest request = request_of(10);
  request.min_tokens = 3;
  request.stop.token_ids = {3};
  request.stop.strings = {"AB"};
  const std::vector<int32_t> eos = {1, 2};
  SequenceOutput output(request, 0, eos, tokenizer_.get());
  EXPECT_EQ(std::vector<int32_t>(output.forbidden_now().begin(), output.forbidden_now().end()),
            (std::vector<int32_t>{3, 1, 2}));
  const Shown below = commit_all(&output, {0, 4, 4});  // "AB" inside the first two does not stop it
  EXPECT_EQ(below.finish, FinishReason::kNone);
  EXPECT_TRUE(output.forbidden_now().empty());
  const Shown last = commit_all(&output, {2});
  EXPECT_EQ(last.finish, FinishReason::kStop);
  EXPECT_EQ(last.stop_token, 2);
  EXPECT_EQ(last.text, "");  // an EOS makes no text
}

TEST_F(LettersTest, IgnoreEosAndMaxTokens) {
  GenerateRequest request = request_of(3);
  request.stop.ignore_eos = true;
  const std::vector<int32_t> eos = {1};
  SequenceOutput output(request, 0, eos, tokenizer_.get());
  const Shown shown = commit_all(&output, {0, 1, 0, 0});
  EXPECT_EQ(shown.tokens.size(), 3u);
  EXPECT_EQ(shown.finish, FinishReason::kLength);
}

// A resumed sequence shows exactly what the broken one had not shown yet, whatever the cut.
TEST_F(LettersTest, ResumptionContinuesTextStopsAndLimits) {
  GenerateRequest request = request_of(6);
  request.stop.strings = {"DEFG"};
  for (const std::vector<int32_t>& tokens :
       {std::vector<int32_t>{0, 1, 2, 3, 4}, std::vector<int32_t>{0, 1, 2, 4, 1, 2, 3}}) {
    SequenceOutput whole(request, 0, {}, tokenizer_.get());
    const Shown expected = commit_all(&whole, tokens);
    for (size_t cut = 1; cut < expected.tokens.size(); ++cut) {
      SequenceOutput first(request, 0, {}, tokenizer_.get());
      const Shown before =
          commit_all(&first, std::vector<int32_t>(tokens.begin(), tokens.begin() + cut));
      GenerateRequest resumed = request;
      resumed.generated_so_far.assign(tokens.begin(), tokens.begin() + cut);
      SequenceOutput second(resumed, 0, {}, tokenizer_.get());
      const Shown after =
          commit_all(&second, std::vector<int32_t>(tokens.begin() + cut, tokens.end()));
      EXPECT_EQ(before.text + after.text, expected.text) << "cut at " << cut;
      EXPECT_EQ(after.finish, expected.finish);
      EXPECT_EQ(second.tokens(), whole.tokens());
    }
  }
}

TEST_F(LettersTest, PenaltyCountsFollowCommits) {
  GenerateRequest request = request_of(6);
  request.sampling.presence_penalty = 1;
  request.generated_so_far = {3};
  SequenceOutput output(request, 0, {}, tokenizer_.get());
  commit_all(&output, {1, 1});
  int ones = 0, threes = 0;
  output.counts().for_each([&](int32_t token, bool, int count) {
    ones += token == 1 ? count : 0;
    threes += token == 3 ? count : 0;
  });
  EXPECT_EQ(ones, 2);
  EXPECT_EQ(threes, 1);
}

// exo-explore/exo pull 1691: characters cut by token borders became replacement marks in streams.
TEST(Commit, CharactersAcrossTokensAndAnIncompleteTail) {
  // F0 9F | 98 | 80 in the byte-level alphabet.
  const auto tokenizer = tokenizer_of({"\u00f0\u0141", "\u013a", "\u0122", "\u0120a", "\u00c4"});
  GenerateRequest request = request_of(10);
  SequenceOutput output(request, 0, {}, tokenizer.get());
  const Shown shown = commit_all(&output, {0, 1, 2, 3, 4, 3});
  EXPECT_EQ(shown.text, "\U0001F600 a\uFFFD a");
  SequenceOutput cut(request, 0, {}, tokenizer.get());
  commit_all(&cut, {0});
  const TokenEvent end = cut.finish(FinishReason::kCancelled, absl::CancelledError("gone"));
  EXPECT_EQ(end.text, "\uFFFD");
  EXPECT_EQ(end.usage.completion_tokens, 1);
}

}  // namespace
}  // namespace brigade::runtime
