// Requests without a client's seed, through a real engine: answers that were verified by rejection
// have the law of plain sampling. The model's logits are known, so the probability of every answer
// is, and thousands of answers under fixed seeds are compared with it by chi-square. A drafter that
// names a law it did not draw from shows what the comparison would notice.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "tests/runtime/engine/engine_bed.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/draft_worker_thread.h"
#include "tests/support/shadow_kv.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using runtime::GenerateRequest;
using Text = std::vector<int32_t>;

constexpr int kVocab = 5, kTokens = 4, kSamples = 16;

// Softmax at a temperature over the `top_k` best logits, written plainly.
std::vector<double> law_after(const Text& text, const runtime::SamplingParams& params) {
  std::vector<float> logits(kVocab);
  scripted_logits(hash_prefix(text), logits);
  std::vector<float> ranked = logits;
  std::sort(ranked.rbegin(), ranked.rend());
  const float least =
      params.top_k > 0 ? ranked[static_cast<size_t>(params.top_k - 1)] : ranked.back();
  std::vector<double> law(kVocab, 0);
  double sum = 0;
  for (size_t token = 0; token < law.size(); ++token) {
    if (logits[token] < least) continue;
    law[token] = std::exp(logits[token] / params.temperature);
    sum += law[token];
  }
  for (double& p : law) p /= sum;
  return law;
}

// Of every answer of kTokens tokens.
std::map<Text, double> law_of_answers(const GenerateRequest& request) {
  std::map<Text, double> law = {{{}, 1.0}};
  for (int length = 0; length < kTokens; ++length) {
    std::map<Text, double> longer;
    for (const auto& [answer, probability] : law) {
      Text text = request.prompt;
      text.insert(text.end(), answer.begin(), answer.end());
      const std::vector<double> next = law_after(text, request.sampling);
      for (int32_t token = 0; token < kVocab; ++token) {
        Text more = answer;
        more.push_back(token);
        if (next[static_cast<size_t>(token)] > 0) {
          longer[more] = probability * next[static_cast<size_t>(token)];
        }
      }
    }
    law = std::move(longer);
  }
  return law;
}

// Guesses drawn from a law that has nothing to do with the target's.
class DrawnDrafter final : public runtime::Drafter {
 public:
  // `lies`: the law that it names is not the one it draws from.
  DrawnDrafter(uint64_t seed, int sample_index, bool lies)
      : key_{.seed = seed, .sample_index = static_cast<uint32_t>(sample_index)}, lies_(lies) {}

  void draft(std::span<const int32_t> text, int wanted, runtime::DraftList* drafts) override {
    drafts->clear();
    text_.assign(text.begin(), text.end());
    for (int i = 0; i < wanted; ++i) push(drafts);
  }
  void run_ahead(std::span<const int32_t>, runtime::DraftList* drafts) override { push(drafts); }

 private:
  void push(runtime::DraftList* drafts) {
    const uint64_t prefix = hash_prefix(text_);
    Text tokens;
    std::vector<float> weights, named;
    for (int32_t token = 0; token < kVocab; ++token) {
      // Every other text has a token that is never drafted.
      if (prefix % 2 == 0 && token == static_cast<int32_t>(prefix / 2 % kVocab)) continue;
      tokens.push_back(token);
      weights.push_back(1 + static_cast<float>(extend_prefix(prefix, token) % 8));
      named.push_back(lies_ ? 1 : weights.back());
    }
    runtime::Distribution law, named_law;
    EXPECT_TRUE(runtime::law_from_weights(tokens, weights, kVocab, &law).ok());
    EXPECT_TRUE(runtime::law_from_weights(tokens, named, kVocab, &named_law).ok());
    const int32_t token = runtime::draw(law, key_, static_cast<uint32_t>(text_.size()),
                                        runtime::RandomPurpose::kDraft);
    if (drafts->push_sparse(token, named_law.tokens, named_law.probabilities)) {
      text_.push_back(token);
    }
  }
  const runtime::RandomKey key_;
  const bool lies_;
  Text text_;  // with the guesses
};

class DrawnSource final : public runtime::DraftSource {
 public:
  explicit DrawnSource(bool lies) : lies_(lies) {}
  int max_law_entries() const override { return kVocab; }
  std::unique_ptr<runtime::Drafter> open(const GenerateRequest& request, int sample_index,
                                         std::span<const int32_t>,
                                         std::span<const int32_t>) override {
    return std::make_unique<DrawnDrafter>(request.sampling.seed, sample_index, lies_);
  }

 private:
  const bool lies_;
};

// Answers counted against their law.
class Tally {
 public:
  explicit Tally(const GenerateRequest& request) : law_(law_of_answers(request)) {}

  void add(const Text& answer) {
    ASSERT_EQ(law_.count(answer), 1u) << testing::PrintToString(answer) << " has probability 0";
    ++seen_[answer];
    ++answers_;
  }
  // How far chi-square lies above its mean, in standard deviations (Wilson, Hilferty 1931). Answers
  // that are expected less than 8 times count as one.
  double deviation() const {
    double rare_expected = 0, rare_seen = 0, chi_square = 0;
    int cells = 0;
    const auto take = [&](double expected, double seen) {
      if (expected <= 0) return;
      chi_square += (seen - expected) * (seen - expected) / expected;
      ++cells;
    };
    for (const auto& [answer, probability] : law_) {
      const auto found = seen_.find(answer);
      const double seen = found == seen_.end() ? 0 : found->second;
      const double expected = probability * answers_;
      if (expected >= 8) {
        take(expected, seen);
      } else {
        rare_expected += expected;
        rare_seen += seen;
      }
    }
    take(rare_expected, rare_seen);
    const double freedom = cells - 1, spread = 2 / (9 * freedom);
    return (std::cbrt(chi_square / freedom) - (1 - spread)) / std::sqrt(spread);
  }
  int answers() const { return answers_; }

 private:
  const std::map<Text, double> law_;
  std::map<Text, int> seen_;
  int answers_ = 0;
};

// A fair comparison passes this once in three million times.
constexpr double kMostDeviation = 5;

struct Speculating {
  const char* name;
  std::function<std::unique_ptr<runtime::DraftSource>()> drafts;
  int depth = 0;
};

double deviation_of(const Speculating& how, runtime::SamplingParams sampling, uint64_t seed) {
  EngineBedConfig config;
  config.vocab = kVocab;
  config.drafts = how.drafts;
  config.limits.max_logit_rows = 128;
  config.limits.max_rows = 128;
  config.blocks = 400;
  EngineBed bed(config);
  GenerateRequest request = request_of({1, 3, 0}, kTokens);
  request.num_sequences = kSamples;
  request.stop.ignore_eos = true;
  request.sampling = sampling;
  request.speculation = {
      .mode = how.depth == 0 ? runtime::SpeculationMode::kOff : runtime::SpeculationMode::kFixed,
      .depth = how.depth};
  Tally tally(request);
  for (int i = 0; i < scaled(is_long_run() ? 20000 : 1000, 500); ++i) {
    request.sampling.seed = seed * 1'000'003 + static_cast<uint64_t>(i);
    for (const SampleAnswer& sample : bed.generate(request).samples) tally.add(sample.tokens);
    if (testing::Test::HasFatalFailure()) return 0;
  }
  const runtime::GeneratorStatus status = bed.engine().status();
  const double deviation = tally.deviation();
  std::printf(
      "%s, depth %d, temperature %g, top-k %d: %d answers, %lld of %lld drafts accepted, "
      "chi-square %.2f deviations above its mean\n",
      how.name, how.depth, sampling.temperature, sampling.top_k, tally.answers(),
      static_cast<long long>(status.accepted_drafts), static_cast<long long>(status.drafted_tokens),
      deviation);
  EXPECT_EQ(status.drafted_tokens > 0, how.depth > 0);
  EXPECT_EQ(bed.leak(), "");
  return deviation;
}

runtime::SamplingParams sampling_of(double temperature, int top_k) {
  runtime::SamplingParams sampling;
  sampling.temperature = temperature;
  sampling.top_k = top_k;
  return sampling;
}

class RejectionLaw : public testing::Test {
 protected:
  const uint64_t seed_ = test_seed(17);
  const std::string note_ = replay_note("rejection_law_test", seed_);
};

TEST_F(RejectionLaw, PlainSamplingHasIt) {
  SCOPED_TRACE(note_);
  EXPECT_LT(deviation_of({.name = "plain"}, sampling_of(4, 0), seed_), kMostDeviation);
}

TEST_F(RejectionLaw, AnswersHaveItWhateverTheDraftsLaw) {
  SCOPED_TRACE(note_);
  for (const int depth : {1, 3}) {
    for (const auto& sampling : {sampling_of(4, 0), sampling_of(1.5, 3)}) {
      const Speculating drawn = {
          .name = "another law",
          .drafts = [] { return std::make_unique<DrawnSource>(/*lies=*/false); },
          .depth = depth};
      EXPECT_LT(deviation_of(drawn, sampling, seed_), kMostDeviation);
    }
  }
}

// A draft worker that knows the target's law but sends its three likeliest tokens only.
TEST_F(RejectionLaw, AnswersHaveItWithADraftWorker) {
  SCOPED_TRACE(note_);
  const auto tokenizer = make_byte_tokenizer({});
  runtime::DraftLinks links({.tokenizer = tokenizer.get()});
  const runtime::KvGeometry kv = {.block_size = 4, .num_blocks = 100};
  ScriptedWorld world(kv.num_blocks, kv.block_size);
  ScriptedModel model(&world, kVocab,
                      {.max_rows = 64, .max_sequences = 32, .max_blocks = 8, .max_logit_rows = 32});
  DraftWorkerThread worker(
      links, {.model = &model,
              .tokenizer = tokenizer.get(),
              .kv = kv,
              .engine = {.limits = {.vocab = kVocab, .max_context = 32}, .max_sequences = 32}});
  ASSERT_TRUE(worker.wait_idle());
  runtime::RemoteDraftsOptions options;
  options.limits = {
      .vocab = kVocab, .max_positions = 32, .max_run_ahead = 16, .max_law_entries = 3};
  const Speculating remote = {.name = "draft worker",
                              .drafts =
                                  [&] {
                                    return std::make_unique<ThreadDraftSource>(
                                        links, options, worker, /*patient=*/true);
                                  },
                              .depth = 2};
  EXPECT_LT(deviation_of(remote, sampling_of(4, 0), seed_), kMostDeviation);
  EXPECT_EQ(worker.problem(), "");
}

TEST_F(RejectionLaw, AWrongLawIsNoticed) {
  SCOPED_TRACE(note_);
  const Speculating lying = {.name = "a law that was not drawn from",
                             .drafts = [] { return std::make_unique<DrawnSource>(/*lies=*/true); },
                             .depth = 3};
  EXPECT_GT(deviation_of(lying, sampling_of(4, 0), seed_), 2 * kMostDeviation);
}

}  // namespace
}  // namespace brigade::tests
