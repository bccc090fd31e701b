// Which rows the engine asks logits of: none where the best token decides, or a short law. Answers
// are the same either way, also in steps that mix all, and a broken row ends its request either
// way.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/engine/engine_bed.h"

namespace brigade::tests {
namespace {

using runtime::GenerateRequest;
using testing::HasSubstr;

constexpr int kTokens = 20;
constexpr int kWarmUp = 1;  // its row's logits are looked at

GenerateRequest greedy(int prompt) { return request_of(some_prompt(prompt, 10, 90), kTokens); }

TEST(RowOutput, GreedyAnswersNeedNoLogits) {
  EngineBed bed({});
  for (int prompt = 0; prompt < 4; ++prompt) {
    const Answer answer = bed.generate(greedy(prompt));
    EXPECT_EQ(answer.samples[0].tokens, greedy_answer(some_prompt(prompt, 10, 90), kTokens));
  }
  EXPECT_EQ(bed.world().rows_of_logits, kWarmUp);
  EXPECT_EQ(bed.world().rows_of_best_token, 4 * kTokens);
}

// One option each that needs the logits, and does not change what is most likely.
TEST(RowOutput, WhateverLooksAtLogitsGetsThem) {
  const std::vector<int32_t> expected = greedy_answer(some_prompt(1, 10, 90), kTokens);
  int32_t unused = 0;
  while (std::find(expected.begin(), expected.end(), unused) != expected.end()) ++unused;
  std::vector<GenerateRequest> requests(4, greedy(1));
  requests[0].sampling.logprobs = 0;
  requests[1].sampling.banned_tokens = {unused};
  requests[2].sampling.logit_bias = {{unused, -1.0f}};
  for (int32_t token = 0; token < 97; ++token) requests[3].sampling.allowed_tokens.push_back(token);
  for (const GenerateRequest& request : requests) {
    EngineBed bed({});
    EXPECT_EQ(bed.generate(request).samples[0].tokens, expected);
    EXPECT_EQ(bed.world().rows_of_logits, kWarmUp + kTokens);
    EXPECT_EQ(bed.world().rows_of_best_token, 0);
  }
  for (double runtime::SamplingParams::*penalty :
       {&runtime::SamplingParams::repetition_penalty, &runtime::SamplingParams::presence_penalty,
        &runtime::SamplingParams::frequency_penalty}) {
    EngineBed bed({});
    GenerateRequest request = greedy(1);
    request.sampling.*penalty = 1.5;
    EXPECT_TRUE(bed.generate(request).status.ok());
    EXPECT_EQ(bed.world().rows_of_best_token, 0);
  }
}

// Until enough tokens are there an end must not be drawn: only then the best token decides.
TEST(RowOutput, MinTokensNeedsLogitsUntilItIsReached) {
  const std::vector<int32_t> tokens = greedy_answer(some_prompt(3, 10, 90), kTokens);
  EngineBed bed({.eos_tokens = {tokens[2]}});
  GenerateRequest request = greedy(3);
  request.min_tokens = 7;
  const std::vector<int32_t> answer = bed.generate(request).samples[0].tokens;
  EXPECT_NE(answer, tokens);
  EXPECT_EQ(answer[1], tokens[1]);
  EXPECT_NE(answer[2], tokens[2]);
  EXPECT_EQ(bed.world().rows_of_logits, kWarmUp + 7);
  EXPECT_EQ(bed.world().rows_of_best_token, static_cast<int64_t>(answer.size()) - 7);
  request.sampling.logprobs = 0;
  EXPECT_EQ(bed.generate(request).samples[0].tokens, answer);
}

std::vector<GenerateRequest> all_kinds() {
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(greedy(i % 5));
    runtime::SamplingParams& sampling = requests.back().sampling;
    sampling.seed = static_cast<uint64_t>(i);
    sampling.seed_from_client = true;
    if (i % 4 == 1) sampling.logprobs = 3;
    if (i % 4 == 2) sampling.temperature = 0.8;
    if (i == 2 || i == 10) sampling.top_k = 12;
    if (i == 10) sampling.top_p = 0.7;
    if (i % 4 == 3) sampling.frequency_penalty = 0.4;
    if (i % 5 == 0) requests.back().num_sequences = 2;
  }
  return requests;
}

TEST(RowOutput, AStepOfAllKindsGivesEachItsOwn) {
  for (const int microbatches : {1, 2}) {
    EngineBed bed({.microbatches = microbatches});
    std::vector<uint64_t> alone;
    for (const GenerateRequest& request : all_kinds()) {
      alone.push_back(bed.generate(request).fingerprint());
    }
    EXPECT_EQ(bed.world().steps_of_all, 0);
    bed.world().frozen = true;  // until all are there
    std::vector<std::shared_ptr<runtime::TokenStream>> streams;
    for (const GenerateRequest& request : all_kinds()) streams.push_back(*bed.submit(request));
    bed.world().frozen = false;
    bed.world().change_cluster();
    for (size_t i = 0; i < streams.size(); ++i) {
      const Answer answer = read_answer(*streams[i], all_kinds()[i].num_sequences);
      EXPECT_EQ(answer.fingerprint(), alone[i]) << i;
    }
    EXPECT_GT(bed.world().steps_of_all, kTokens / 2);
    EXPECT_EQ(bed.leak(), "");
  }
}

// With a short list of candidates their law suffices, and draws what the logits would.
TEST(RowOutput, ASmallTopKNeedsNoLogits) {
  for (const bool client_seed : {true, false}) {
    for (const int top_k : {1, 7, 64, 65}) {
      EngineBed bed({});
      GenerateRequest request = greedy(2);
      request.sampling.temperature = 1.2;
      request.sampling.top_k = top_k;
      request.sampling.top_p = top_k == 7 ? 0.8 : 1;
      request.sampling.min_p = top_k == 64 ? 0.01 : 0;
      request.sampling.seed = 5;
      request.sampling.seed_from_client = client_seed;
      const std::vector<int32_t> tokens = bed.generate(request).samples[0].tokens;
      EXPECT_EQ(bed.world().rows_of_law, top_k <= 64 ? kTokens : 0);
      EXPECT_EQ(bed.world().rows_of_logits, kWarmUp + (top_k <= 64 ? 0 : kTokens));
      request.sampling.logprobs = 0;
      EXPECT_EQ(bed.generate(request).samples[0].tokens, tokens);
      EXPECT_EQ(bed.world().rows_of_law, top_k <= 64 ? kTokens : 0);
    }
  }
}

// The row of a request without any other option is known by its best token or its law alone.
TEST(RowOutput, ARowThatMustNotBeSampledEndsItsRequestAndNoOther) {
  for (const auto& [infinity, top_k] :
       std::vector<std::pair<bool, int>>{{false, 0}, {true, 0}, {false, 5}, {true, 5}}) {
    EngineBed bed({.prepare = [&](ScriptedWorld& world) {
      (infinity ? world.infinity_token : world.nan_token) = 96;
    }});
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 4; ++i) {
      requests.push_back(greedy(i));
      if (i != 2) requests.back().sampling.banned_tokens = {96};
    }
    requests[2].prompt[5] = 96;
    requests[2].sampling.temperature = top_k > 0 ? 1 : 0;
    requests[2].sampling.top_k = top_k;
    std::vector<std::shared_ptr<runtime::TokenStream>> streams;
    for (const GenerateRequest& request : requests) streams.push_back(*bed.submit(request));
    for (size_t i = 0; i < streams.size(); ++i) {
      const Answer answer = read_answer(*streams[i], 1);
      if (i != 2) {
        EXPECT_TRUE(answer.status.ok()) << answer.status;
        EXPECT_EQ(answer.samples[0].tokens.size(), static_cast<size_t>(kTokens));
        continue;
      }
      EXPECT_EQ(answer.status.code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(answer.status.message()),
                  HasSubstr("non-finite logits after position 9"));
      EXPECT_THAT(std::string(answer.status.message()), HasSubstr("non-finite too"));
      EXPECT_TRUE(answer.samples[0].tokens.empty());
    }
    EXPECT_EQ(bed.engine().status().nonfinite_rows, 2);  // once among others, once alone
    EXPECT_EQ(bed.world().rows_of_best_token, top_k > 0 ? 0 : 2);
    EXPECT_EQ(bed.world().rows_of_law, top_k > 0 ? 2 : 0);
    EXPECT_EQ(bed.leak(), "");
  }
}

}  // namespace
}  // namespace brigade::tests
