#include "runtime/engine/engine.h"

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/engine/engine_bed.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using runtime::FinishReason;
using runtime::GenerateRequest;
using testing::HasSubstr;

std::string message_of(const absl::Status& status) { return std::string(status.message()); }

TEST(Engine, AnswersWithTheModelsTokens) {
  EngineBed bed({});
  const Answer answer = bed.generate(request_of(some_prompt(1, 10), 20));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.samples[0].tokens, greedy_answer(some_prompt(1, 10), 20));
  EXPECT_EQ(answer.samples[0].finish, FinishReason::kLength);
  EXPECT_EQ(answer.samples[0].usage.prompt_tokens, 10);
  EXPECT_EQ(answer.samples[0].usage.completion_tokens, 20);
  EXPECT_EQ(answer.samples[0].usage.cached_prompt_tokens, 0);
  const Answer again = bed.generate(request_of(some_prompt(1, 10), 20));
  EXPECT_EQ(again.fingerprint(), answer.fingerprint());
  EXPECT_EQ(again.samples[0].usage.cached_prompt_tokens, 8);
  EXPECT_EQ(bed.leak(), "");
}

TEST(Engine, EosEndsASequence) {
  const std::vector<int32_t> tokens = greedy_answer(some_prompt(3, 5), 40);
  EngineBed bed({.eos_tokens = {tokens[6]}});
  const Answer answer = bed.generate(request_of(some_prompt(3, 5), 40));
  const size_t first =
      static_cast<size_t>(std::find(tokens.begin(), tokens.end(), tokens[6]) - tokens.begin());
  EXPECT_EQ(answer.samples[0].tokens.size(), first + 1);
  EXPECT_EQ(answer.samples[0].finish, FinishReason::kStop);
  EXPECT_EQ(bed.leak(), "");
}

TEST(Engine, ManyAtOnceGetTheirOwnAnswers) {
  for (const int microbatches : {1, 2, 3}) {
    EngineBed bed(
        {.microbatches = microbatches, .prepare = [](ScriptedWorld& world) { world.waits = 1; }});
    std::vector<std::shared_ptr<runtime::TokenStream>> streams;
    // No step ends before all but the last are there, so they must share steps; the last one's
    // submission wakes the step thread.
    bed.world().frozen = true;
    for (int i = 0; i < 24; ++i) {
      if (i == 23) bed.world().frozen = false;
      streams.push_back(*bed.submit(request_of(some_prompt(i, 3 + i), 30)));
    }
    for (int i = 0; i < 24; ++i) {
      EXPECT_EQ(read_answer(*streams[static_cast<size_t>(i)], 1).samples[0].tokens,
                greedy_answer(some_prompt(i, 3 + i), 30));
    }
    EXPECT_GT(bed.world().largest_step, 6);
    EXPECT_EQ(bed.leak(), "");
  }
}

TEST(Engine, ResumedRequestsGoOnAsIfNothingHadHappened) {
  EngineBed bed({});
  for (const double temperature : {0.0, 0.8}) {
    GenerateRequest request = request_of(some_prompt(5, 9), 16);
    request.sampling.temperature = temperature;
    request.sampling.seed = 77;
    request.sampling.frequency_penalty = 0.5;
    const std::vector<int32_t> whole = bed.generate(request).samples[0].tokens;
    for (size_t cut = 1; cut < whole.size(); cut += 3) {
      GenerateRequest resumed = request;
      resumed.generated_so_far.assign(whole.begin(),
                                      whole.begin() + static_cast<std::ptrdiff_t>(cut));
      const Answer rest = bed.generate(resumed);
      EXPECT_EQ(
          rest.samples[0].tokens,
          std::vector<int32_t>(whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end()));
      EXPECT_EQ(rest.samples[0].usage.completion_tokens, 16);
    }
  }
  EXPECT_EQ(bed.leak(), "");
}

TEST(Engine, SequencesOfARequestShareThePromptAndDiffer) {
  EngineBed bed({});
  GenerateRequest request = request_of(some_prompt(5, 30), 12);
  request.num_sequences = 4;
  request.sampling.temperature = 1;
  request.sampling.seed = 5;
  const Answer answer = bed.generate(request);
  ASSERT_TRUE(answer.status.ok());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(answer.samples[static_cast<size_t>(i)].tokens.size(), 12u);
    for (int j = 0; j < i; ++j) {
      EXPECT_NE(answer.samples[static_cast<size_t>(i)].tokens,
                answer.samples[static_cast<size_t>(j)].tokens);
    }
  }
  EXPECT_EQ(bed.world().copies, 4);  // the last, partial block
  EXPECT_EQ(bed.leak(), "");
}

// Reports of endless token 0 from NaN logits and of poisoned KV used again (sgl-project/sglang
// issue 33187): only the request concerned fails.
TEST(Engine, NonFiniteLogitsEndOnlyTheirRequest) {
  for (const bool infinity : {false, true}) {
    for (const double temperature : {0.0, 1.0}) {
      EngineBed bed({.prepare = [&](ScriptedWorld& world) {
        (infinity ? world.infinity_token : world.nan_token) = 96;
      }});
      // The tokens of the healthy prompts and answers stay below 96.
      std::vector<GenerateRequest> requests;
      for (int i = 0; i < 6; ++i) {
        requests.push_back(request_of(some_prompt(i, 14, 90), 30));
        requests.back().sampling.temperature = temperature;
        requests.back().sampling.banned_tokens = {96};
      }
      const GenerateRequest first_alone = requests[0];
      requests[3].prompt[5] = 96;
      const Answer alone = bed.generate(first_alone);
      std::vector<std::shared_ptr<runtime::TokenStream>> streams;
      for (const auto& request : requests) streams.push_back(*bed.submit(request));
      for (size_t i = 0; i < streams.size(); ++i) {
        const Answer answer = read_answer(*streams[i], 1);
        if (i != 3) {
          EXPECT_TRUE(answer.status.ok()) << answer.status;
          EXPECT_EQ(answer.samples[0].tokens.size(), 30u);
          continue;
        }
        EXPECT_EQ(answer.status.code(), absl::StatusCode::kInternal);
        EXPECT_THAT(message_of(answer.status), HasSubstr("non-finite logits after position 13"));
        EXPECT_THAT(message_of(answer.status), HasSubstr("non-finite too"));
        EXPECT_EQ(answer.samples[0].finish, FinishReason::kError);
        EXPECT_TRUE(answer.samples[0].tokens.empty());
      }
      EXPECT_EQ(bed.world().lone_nan_steps, infinity ? 0 : 1);
      // Its prefix was not kept: the same prompt is computed from the start.
      const Answer again = bed.generate(requests[3]);
      EXPECT_EQ(again.status.code(), absl::StatusCode::kInternal);
      EXPECT_EQ(again.samples[0].usage.cached_prompt_tokens, 0);
      EXPECT_EQ(bed.generate(first_alone).fingerprint(), alone.fingerprint());
      EXPECT_EQ(bed.engine().status().nonfinite_rows, 4);
      EXPECT_EQ(bed.engine().status().requests_failed, 2);
      EXPECT_EQ(bed.leak(), "");
    }
  }
}

TEST(Engine, OptionsThatLeaveNoTokenAreAnError) {
  EngineBed bed({});
  GenerateRequest request = request_of(some_prompt(1, 5), 5);
  request.sampling.allowed_tokens = {7};
  request.sampling.banned_tokens = {7};
  EXPECT_EQ(bed.generate(request).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bed.leak(), "");
}

TEST(Engine, AFailedStepEndsTheRequestsInItAndNothingElse) {
  EngineBed bed({.prepare = [](ScriptedWorld& world) { world.error_token = 96; }});
  GenerateRequest bad = request_of(some_prompt(1, 6, 90), 8);
  bad.prompt[2] = 96;
  const Answer failed = bed.generate(bad);
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(message_of(failed.status), HasSubstr("the step failed: scripted failure"));
  GenerateRequest good = request_of(some_prompt(2, 6, 90), 8);
  good.sampling.banned_tokens = {96};
  EXPECT_TRUE(bed.generate(good).status.ok());
  EXPECT_EQ(bed.leak(), "");
}

// Reports of queues without a bound (vllm-project/vllm issue 18826): 4 running, 8 waiting, 100
// calls from several threads.
TEST(Engine, RefusesExactlyTheOverflowAtOnce) {
  EngineBedConfig config;
  config.engine.max_running_sequences = 4;
  config.engine.max_waiting_requests = 8;
  config.engine.stall_limit = absl::Milliseconds(400);  // a quarter of it bounds every sleep
  EngineBed bed(config);
  bed.world().frozen = true;
  std::atomic<int> accepted = 0, refused = 0;
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&, t] {
      std::vector<std::shared_ptr<runtime::TokenStream>> streams;
      for (int i = 0; i < 25; ++i) {
        const auto stream = bed.submit(request_of(some_prompt(t * 25 + i, 6), 4));
        if (stream.ok()) {
          ++accepted;
          streams.push_back(*stream);
        } else {
          ++refused;
          EXPECT_EQ(stream.status().code(), absl::StatusCode::kResourceExhausted);
        }
      }
      while (accepted + refused < 100) absl::SleepFor(absl::Milliseconds(1));
      bed.world().frozen = false;
      for (const auto& stream : streams) {
        EXPECT_EQ(read_answer(*stream, 1).samples[0].tokens.size(), 4u);
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(accepted, 12);
  EXPECT_EQ(refused, 88);
  EXPECT_EQ(bed.engine().status().requests_rejected, 88);
  EXPECT_EQ(bed.leak(), "");
}

TEST(Engine, RefusesWhatCanNeverFit) {
  EngineBed bed({.blocks = 10});
  const auto refused = bed.submit(request_of(some_prompt(1, 41), 1));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(message_of(refused.status()), HasSubstr("need 11 KV blocks"));
  EXPECT_TRUE(bed.generate(request_of(some_prompt(1, 40), 1)).status.ok());
  EXPECT_EQ(bed.leak(), "");
}

TEST(Engine, CancellationStormsLeakNothing) {
  const uint64_t seed = test_seed(3);
  SCOPED_TRACE(replay_note("engine_test", seed));
  EngineBedConfig config{.microbatches = 2, .blocks = 60};
  config.engine.max_waiting_requests = 1000;
  config.engine.max_running_sequences = 12;
  EngineBed bed(config);
  bed.world().waits = 1;
  std::vector<std::thread> clients;
  const int calls = scaled(150, 15);
  for (uint64_t t = 0; t < 4; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < calls; ++i) {
        const uint64_t random = extend_prefix(seed * 4 + t, i);
        GenerateRequest request =
            request_of(some_prompt(static_cast<int>(random % 7), 4 + random % 60), 50);
        request.num_sequences = random % 5 == 0 ? 3 : 1;
        const auto stream = bed.submit(request);
        ASSERT_TRUE(stream.ok()) << stream.status();
        // Cancelled after some tokens, or at once.
        for (uint64_t read = 0; read < (random >> 20) % 12; ++read) {
          if (!(*stream)->next(absl::Now() + absl::Seconds(20)).ok()) break;
        }
        (*stream)->cancel();
      }
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_EQ(bed.leak(), "");
  EXPECT_GT(bed.engine().status().requests_cancelled, calls);  // some had ended already
  EXPECT_TRUE(bed.generate(request_of(some_prompt(1, 6), 4)).status.ok());
}
}  // namespace
}  // namespace brigade::tests
