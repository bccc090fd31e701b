#include "runtime/request/request.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace brigade::runtime {
namespace {

using ::testing::HasSubstr;

GenerateRequest good_request() {
  GenerateRequest request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 10;
  return request;
}

const RequestLimits kLimits{.vocab_size = 100, .max_context = 64};

struct BadCase {
  const char* names;  // must appear in the sentence
  std::function<void(GenerateRequest*)> spoil;
};

// Among them the values of vllm-project/vllm issue 54195 and pull 44968: an id outside the vocabulary,
// or a number that no sampler can use, must be refused at the door.
const BadCase kBadCases[] = {
    {"prompt is empty", [](auto* r) { r->prompt.clear(); }},
    {"prompt.token_ids[1] is -1", [](auto* r) { r->prompt[1] = -1; }},
    {"prompt.token_ids[2] is 100", [](auto* r) { r->prompt[2] = 100; }},
    {"the model's context is 64", [](auto* r) { r->prompt.assign(64, 1); }},
    {"max_tokens is 0", [](auto* r) { r->max_tokens = 0; }},
    {"max_tokens is 62", [](auto* r) { r->max_tokens = 62; }},
    {"min_tokens is 11", [](auto* r) { r->min_tokens = 11; }},
    {"min_tokens is -1", [](auto* r) { r->min_tokens = -1; }},
    {"num_sequences is 0", [](auto* r) { r->num_sequences = 0; }},
    {"num_sequences is 9", [](auto* r) { r->num_sequences = 9; }},
    {"sampling.temperature", [](auto* r) { r->sampling.temperature = std::nan(""); }},
    {"sampling.temperature", [](auto* r) { r->sampling.temperature = -0.1; }},
    {"sampling.temperature",
     [](auto* r) { r->sampling.temperature = std::numeric_limits<double>::infinity(); }},
    {"sampling.top_k is -2", [](auto* r) { r->sampling.top_k = -2; }},
    {"sampling.top_p is 0", [](auto* r) { r->sampling.top_p = 0; }},
    {"sampling.top_p is 1.1", [](auto* r) { r->sampling.top_p = 1.1; }},
    {"sampling.top_p", [](auto* r) { r->sampling.top_p = std::nan(""); }},
    {"sampling.min_p", [](auto* r) { r->sampling.min_p = 1.5; }},
    {"sampling.repetition_penalty", [](auto* r) { r->sampling.repetition_penalty = 0; }},
    {"sampling.presence_penalty", [](auto* r) { r->sampling.presence_penalty = 1e9; }},
    {"sampling.frequency_penalty", [](auto* r) { r->sampling.frequency_penalty = std::nan(""); }},
    {"sampling.logit_bias[0].token is 100", [](auto* r) { r->sampling.logit_bias = {{100, 1.f}}; }},
    {"sampling.logit_bias[1].bias",
     [](auto* r) { r->sampling.logit_bias = {{1, 1.f}, {2, std::nanf("")}}; }},
    {"sampling.allowed_tokens[0]", [](auto* r) { r->sampling.allowed_tokens = {-5}; }},
    {"sampling.banned_tokens[0]", [](auto* r) { r->sampling.banned_tokens = {1000}; }},
    {"sampling.logprobs is 21", [](auto* r) { r->sampling.logprobs = 21; }},
    {"stop.strings[0] has 0 bytes", [](auto* r) { r->stop.strings = {""}; }},
    {"stop.strings has 17", [](auto* r) { r->stop.strings.assign(17, "x"); }},
    {"stop.token_ids[0]", [](auto* r) { r->stop.token_ids = {100}; }},
    {"generated_so_far has 10", [](auto* r) { r->generated_so_far.assign(10, 1); }},
    {"generated_so_far[0] is 100", [](auto* r) { r->generated_so_far = {100}; }},
    {"generated_so_far is only possible", [](auto* r) {
       r->generated_so_far = {1};
       r->num_sequences = 2;
     }},
};

TEST(Request, AcceptsAGoodOne) { EXPECT_TRUE(validate(good_request(), kLimits).ok()); }

TEST(Request, RefusesEachBadFieldByName) {
  for (const BadCase& bad : kBadCases) {
    GenerateRequest request = good_request();
    bad.spoil(&request);
    const absl::Status status = validate(request, kLimits);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.names;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.names));
  }
}

}  // namespace
}  // namespace brigade::runtime
