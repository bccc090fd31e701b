// Speculation through a real engine: whatever the drafter does, at any depth and in any batch, an
// answer is what it is without; passes are saved; blocks, KV and streams stay in order.
#include <algorithm>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "tests/runtime/engine/speculation_bed.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

class Fuzz {
 public:
  explicit Fuzz(uint64_t seed) : random_(seed) {}
  int pick(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  GenerateRequest request(int number) {
    GenerateRequest made = request_of(some_prompt(pick(0, 5), pick(1, 30)), pick(1, 24));
    // Some prompts repeat themselves, so that lookup finds something.
    if (pick(0, 2) == 0)
      made.prompt.insert(made.prompt.end(), made.prompt.begin(), made.prompt.end());
    made.id = "?" + std::to_string(number);
    made.num_sequences = pick(0, 4) == 0 ? pick(2, 3) : 1;
    made.min_tokens = pick(0, 2) == 0 ? pick(0, made.max_tokens) : 0;
    made.stop.ignore_eos = pick(0, 1) == 0;
    for (int i = pick(0, 2); i > 0; --i) made.stop.token_ids.push_back(pick(0, kVocab - 1));
    if (pick(0, 3) == 0) made.use_prefix_cache = false;
    runtime::SamplingParams& sampling = made.sampling;
    sampling.seed = random_();
    sampling.seed_from_client = true;
    sampling.temperature = pick(0, 1) == 0 ? 0 : 0.3 * pick(1, 5);
    sampling.top_k = pick(0, 2) == 0 ? pick(1, 20) : 0;
    sampling.top_p = pick(0, 2) == 0 ? 0.1 * pick(3, 9) : 1;
    sampling.min_p = pick(0, 3) == 0 ? 0.05 : 0;
    if (pick(0, 2) == 0) {
      sampling.repetition_penalty = 1 + 0.1 * pick(0, 5);
      sampling.presence_penalty = 0.2 * pick(0, 5);
      sampling.frequency_penalty = 0.2 * pick(0, 5);
    }
    if (pick(0, 3) == 0) sampling.logit_bias = {{pick(0, kVocab - 1), 3.0f}};
    for (int i = pick(-4, 5); i > 0; --i) sampling.banned_tokens.push_back(pick(0, kVocab - 1));
    if (pick(0, 1) == 0) sampling.logprobs = pick(0, 5);
    return made;
  }
  void speculate(GenerateRequest* request) {
    request->id[0] = "RWSHLRS"[pick(0, 6)];
    request->speculation.mode = pick(0, 3) == 0 ? SpeculationMode::kAuto : SpeculationMode::kFixed;
    request->speculation.depth = pick(1, 8);
  }
  EngineBedConfig config(bool crowded) {
    EngineBedConfig config;
    config.vocab = kVocab;
    config.microbatches = pick(1, 3);
    config.block_size = pick(1, 8);
    // The longest request needs 84 positions.
    const int longest = 84 / config.block_size + 1;
    config.blocks = crowded ? 2 * longest : 30 * longest;
    config.limits = {.max_rows = pick(4, 64),
                     .max_sequences = pick(1, 16),
                     .max_blocks = longest,
                     .max_logit_rows = pick(3, 32)};
    config.eos_tokens = {5, 40};
    config.engine.prefill_chunk = pick(1, 40);
    config.engine.stream_capacity = pick(3, 40);
    return config;
  }

 private:
  std::mt19937_64 random_;
};

TEST(Speculation, EveryFieldIsEqualOffAndOn) {
  const uint64_t seed = test_seed(3);
  SCOPED_TRACE(replay_note("speculation_test", seed));
  Fuzz fuzz(seed);
  int64_t accepted = 0, drafted = 0, preemptions = 0;
  const int beds = scaled(is_long_run() ? 80 : 30, 6);
  for (int round = 0; round < beds; ++round) {
    SpeculationBed bed(fuzz.config(/*crowded=*/round % 3 == 1));
    std::vector<GenerateRequest> requests;
    std::vector<Answer> plain;
    for (int i = 0; i < 25; ++i) {
      requests.push_back(fuzz.request(i));
      plain.push_back(bed.plain(requests.back()));
    }
    std::vector<std::shared_ptr<runtime::TokenStream>> streams;
    for (GenerateRequest& request : requests) {
      fuzz.speculate(&request);
      auto stream = bed.bed().submit(request);
      ASSERT_TRUE(stream.ok()) << stream.status();
      streams.push_back(*std::move(stream));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE("round " + std::to_string(round) + ", request " + requests[i].id + ", depth " +
                   std::to_string(requests[i].speculation.depth));
      expect_equal(read_answer(*streams[i], requests[i].num_sequences), plain[i]);
    }
    ASSERT_EQ(bed.bed().leak(), "");
    ASSERT_EQ(bed.bed().world().problem(), "");
    const runtime::GeneratorStatus status = bed.bed().engine().status();
    accepted += status.accepted_drafts;
    drafted += status.drafted_tokens;
    preemptions += status.preemptions;
    if (HasFailure()) return;
  }
  std::printf("%d requests: %lld drafted, %lld accepted, %lld preemptions\n", 25 * beds,
              static_cast<long long>(drafted), static_cast<long long>(accepted),
              static_cast<long long>(preemptions));
  EXPECT_GT(accepted, 0);
  EXPECT_GT(drafted, accepted);
  EXPECT_GT(preemptions, 0);
}

GenerateRequest long_request(char script, int depth, int max_tokens = 60) {
  GenerateRequest request = request_of(some_prompt(2, 12), max_tokens);
  request.use_prefix_cache = false;
  request.id = std::string(1, script) + "long";
  request.speculation = {.mode = SpeculationMode::kFixed, .depth = depth};
  return request;
}

int64_t at(const std::vector<int64_t>& counts, size_t position) {
  return position < counts.size() ? counts[position] : 0;
}

// Depth k and right drafts: k + 1 tokens a pass.
TEST(Speculation, RightDraftsSavePasses) {
  SpeculationBed bed({});
  const Answer plain = bed.plain(long_request('N', 1));
  ASSERT_EQ(bed.bed().leak(), "");  // all is counted
  for (int depth = 1; depth <= 8; ++depth) {
    const auto before = bed.bed().engine().status();
    const Answer answer = bed.bed().generate(long_request('R', depth));
    expect_equal(answer, plain);
    ASSERT_EQ(bed.bed().leak(), "");
    const auto after = bed.bed().engine().status();
    // The prompt's pass gives the first token; the last pass may be shorter.
    const int64_t passes = after.steps - before.steps - 1;
    EXPECT_EQ(passes, (59 + depth) / (depth + 1)) << "depth " << depth;
    EXPECT_EQ(after.accepted_drafts - before.accepted_drafts, 59 - passes) << "depth " << depth;
    EXPECT_EQ(answer.samples[0].usage.target_passes, passes + 1);
    EXPECT_EQ(answer.samples[0].usage.accepted_drafts, 59 - passes);
    EXPECT_EQ(answer.samples[0].usage.drafted_tokens, after.drafted_tokens - before.drafted_tokens);
    // Every pass but the last, which may be shorter, had a draft at each position; all were right.
    const runtime::SequenceUsage& usage = answer.samples[0].usage;
    ASSERT_EQ(usage.drafted_by_position.size(), static_cast<size_t>(depth));
    for (const int64_t count : usage.drafted_by_position) {
      EXPECT_TRUE(count == passes || count == passes - 1) << count;
    }
    EXPECT_EQ(usage.accepted_by_position, usage.drafted_by_position);
    EXPECT_EQ(after.drafting.passes - before.drafting.passes, passes);
    EXPECT_EQ(after.drafting.drafted_by_position[0] - at(before.drafting.drafted_by_position, 0),
              usage.drafted_by_position[0]);
    EXPECT_GT(usage.draft_wait, absl::ZeroDuration());
    EXPECT_GT(after.drafting.step_seconds, after.drafting.wait_seconds);
    EXPECT_EQ(usage.run_ahead_drafts, 0);  // made on demand
  }
  EXPECT_EQ(bed.bed().world().rows_of_logits, 1);  // of the warm-up
}

// Every pass commits one token and leaves nothing behind, cancelled in the middle or not; the
// prefix that the next request finds holds committed tokens only.
TEST(Speculation, WrongDraftsLeaveNothingBehind) {
  SpeculationBed bed({});
  const Answer plain = bed.plain(long_request('N', 1, 100));
  for (const int depth : {1, 4, 8}) {
    expect_equal(bed.bed().generate(long_request('W', depth, 100)), plain);
    EXPECT_EQ(bed.bed().engine().status().accepted_drafts, 0);
    const auto stream = *bed.bed().submit(long_request('W', depth, 100));
    runtime::TokenEvent event;
    bool ended = false;
    eventually([&] { return stream->try_next(&event, &ended); });
    stream->cancel();
    EXPECT_EQ(bed.bed().leak(), "");
    GenerateRequest longer = long_request('R', depth, 100);
    longer.speculation.mode = SpeculationMode::kOff;
    expect_equal(bed.bed().generate(longer), plain);
  }
}

// A stop or the limit inside an accepted block ends the answer exactly there.
TEST(Speculation, AnswersEndInsideABlock) {
  for (int max_tokens = 1; max_tokens <= 12; ++max_tokens) {
    for (int stop_at = -1; stop_at < max_tokens; ++stop_at) {
      SpeculationBed bed({});
      GenerateRequest request = long_request('N', 4, 20);
      const Text tokens = bed.plain(request).samples[0].tokens;
      request.max_tokens = max_tokens;
      if (stop_at >= 0) request.stop.token_ids = {tokens[static_cast<size_t>(stop_at)]};
      const Answer plain = bed.plain(request);
      request.id[0] = 'R';
      expect_equal(bed.bed().generate(request), plain);
    }
  }
}

TEST(Speculation, RowsThatAreNotFiniteFailTheSameWay) {
  SpeculationBed bed({});
  GenerateRequest request = long_request('N', 4, 40);
  request.use_prefix_cache = false;
  const Text tokens = bed.plain(request).samples[0].tokens;
  for (const size_t at : {0u, 3u, 17u}) {
    bed.bed().world().nan_token = tokens[at];
    const Answer plain = bed.plain(request);
    EXPECT_FALSE(plain.status.ok());
    for (const char script : {'R', 'S', 'H', 'L'}) {
      request.id[0] = script;
      // The truth is the text without the fault, so that drafts lead into it and beyond.
      bed.bed().world().nan_token = -1;
      bed.plain(request);
      bed.bed().world().nan_token = tokens[at];
      expect_equal(bed.bed().generate(request), plain);
    }
    bed.bed().world().nan_token = -1;
  }
  // A draft that would bring the fault, refused, brings nothing.
  const auto unused = [&] {
    for (int32_t token = 0;; ++token) {
      if (std::find(tokens.begin(), tokens.end(), token) == tokens.end() &&
          std::find(request.prompt.begin(), request.prompt.end(), token) == request.prompt.end()) {
        return token;
      }
    }
  }();
  request.id[0] = 'N';
  const Answer plain = bed.plain(request);
  bed.bed().world().nan_token = unused;
  for (const int depth : {1, 5, 8}) {
    request.id[0] = 'W';
    request.speculation.depth = depth;
    expect_equal(bed.bed().generate(request), plain);
  }
  EXPECT_EQ(bed.bed().engine().status().nonfinite_rows > 0, true);
  bed.bed().world().nan_token = -1;
  EXPECT_EQ(bed.bed().leak(), "");
}

// Rows that lack an expert, of drafts or not, change nothing but the number of steps.
TEST(Speculation, ParkedRowsChangeNothing) {
  EngineBedConfig config;
  config.engine.parking_retry = absl::Milliseconds(1);
  SpeculationBed bed(config);
  std::vector<GenerateRequest> requests;
  std::vector<Answer> plain;
  Fuzz fuzz(test_seed(8));
  for (int i = 0; i < 12; ++i) {
    requests.push_back(fuzz.request(i));
    plain.push_back(bed.plain(requests.back()));
  }
  bed.bed().world().park_percent = 12;
  std::vector<std::shared_ptr<runtime::TokenStream>> streams;
  for (GenerateRequest& request : requests) {
    fuzz.speculate(&request);
    streams.push_back(*bed.bed().submit(request));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    expect_equal(read_answer(*streams[i], requests[i].num_sequences), plain[i]);
  }
  EXPECT_GT(bed.bed().world().parked_rows, 0);
  EXPECT_GT(bed.bed().engine().status().accepted_drafts, 0);
  EXPECT_EQ(bed.bed().leak(), "");
}

// Not seeded by the client: the law is promised, not the draw; it must run to its end in any case.
TEST(Speculation, RequestsWithoutASeedRunByRejection) {
  SpeculationBed bed({});
  GenerateRequest request = long_request('N', 4);
  request.sampling.temperature = 0.7;
  bed.plain(request);
  for (const char script : {'R', 'W', 'S', 'H', 'L'}) {
    request.id[0] = script;
    request.sampling.seed += 1;
    const Answer answer = bed.bed().generate(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.samples[0].tokens.size(), 60u);
  }
  EXPECT_GT(bed.bed().engine().status().drafted_tokens, 0);
  EXPECT_EQ(bed.bed().leak(), "");
}

TEST(Speculation, TheServersDefaultIsOffAndARequestMayChooseOtherwise) {
  for (const SpeculationMode server : {SpeculationMode::kOff, SpeculationMode::kFixed}) {
    EngineBedConfig config;
    config.engine.speculation = {.mode = server, .depth = 3};
    SpeculationBed bed(config);
    GenerateRequest request = long_request('N', 4);
    bed.plain(request);
    EXPECT_EQ(bed.bed().leak(), "");
    request.id[0] = 'R';
    for (const SpeculationMode asked :
         {SpeculationMode::kServerDefault, SpeculationMode::kOff, SpeculationMode::kFixed}) {
      request.speculation.mode = asked;
      const int64_t before = bed.bed().engine().status().drafted_tokens;
      bed.bed().generate(request);
      EXPECT_EQ(bed.bed().leak(), "");
      const bool on = asked == SpeculationMode::kFixed ||
                      (asked == SpeculationMode::kServerDefault && server != SpeculationMode::kOff);
      EXPECT_EQ(bed.bed().engine().status().drafted_tokens > before, on);
    }
  }
}

}  // namespace
}  // namespace brigade::tests
