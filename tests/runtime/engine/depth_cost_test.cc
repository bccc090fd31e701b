// Depth control inside a real engine, on a clock that the scripted model moves: what a step costs
// comes from a table over its rows and the distinct experts that the slower of two workers reads.
// Routing that wakes few or many experts leads to different depths, each the best on its table;
// drafts that do not pay let their drafter rest.
#include <atomic>
#include <random>

#include "gtest/gtest.h"
#include "runtime/model/expert_use.h"
#include "tests/runtime/engine/engine_bed.h"
#include "tests/support/scripted_drafter.h"

namespace brigade::tests {
namespace {

using runtime::SpeculationMode;
using Text = std::vector<int32_t>;

constexpr int kVocab = 97, kExperts = 64, kLayers = 2, kTopK = 2;

// Experts 0..31 are one worker's, the others another's.
enum class Routing {
  kFew,   // nearly every row takes the same two, one of each worker
  kMany,  // two of one worker's, any
};

// Time that steps take: 5 ms, 6 ms for each expert of the slower worker, 0.1 ms a row.
class VirtualClock {
 public:
  absl::Time now() const { return absl::UnixEpoch() + absl::Nanoseconds(nanoseconds_.load()); }
  void pass(double milliseconds) { nanoseconds_ += static_cast<int64_t>(milliseconds * 1e6); }

 private:
  std::atomic<int64_t> nanoseconds_{1'000'000'000};
};

class RoutedModel : public ScriptedModel {
 public:
  RoutedModel(ScriptedWorld* world, const runtime::StepLimits& limits, Routing routing,
              VirtualClock* clock)
      : ScriptedModel(world, kVocab, limits), routing_(routing), clock_(*clock) {
    for (int layer = 0; layer < kLayers; ++layer) {
      use_.add_layer(kExperts);
      for (int expert = 0; expert < kExperts; ++expert) {
        use_.set_holder(layer, expert, 1 + expert / (kExperts / 2));
      }
    }
  }
  absl::Status begin(const runtime::StepBatch& batch, kernels::Waker* waker) override {
    rows_ = batch.rows();
    return ScriptedModel::begin(batch, waker);
  }
  absl::StatusOr<Progress> advance() override {
    absl::StatusOr<Progress> progress = ScriptedModel::advance();
    if (!progress.ok() || *progress == Progress::kWaiting) return progress;
    use_.begin_step();
    for (int row = 0; row < rows_; ++row) {
      for (int layer = 0; layer < kLayers; ++layer) route(layer);
    }
    use_.end_step(rows_);
    clock_.pass(5 + 6 * use_.slowest() + 0.1 * rows_);
    return progress;
  }
  const runtime::ExpertUse* expert_use() const override { return &use_; }

 private:
  void route(int layer) {
    const auto drawn = static_cast<int>(random_() % 1000);
    const bool usual = routing_ == Routing::kFew && drawn < 980;
    const int first = usual ? 0 : static_cast<int>(random_() % (kExperts / 2));
    const int half = routing_ == Routing::kFew ? kExperts / 2 : 0;
    int second = usual ? 0 : static_cast<int>(random_() % (kExperts / 2));
    if (half == 0 && second == first) second = (second + 1) % (kExperts / 2);
    use_.count(layer, first);
    use_.count(layer, half + second);
  }
  const Routing routing_;
  VirtualClock& clock_;
  runtime::ExpertUse use_;
  std::mt19937_64 random_{7};
  int rows_ = 0;
};

// Drafters that are right with one probability, and count what they are asked.
class CountingSource final : public runtime::DraftSource {
 public:
  explicit CountingSource(double right) : right_(right) {}
  std::unique_ptr<runtime::Drafter> open(const runtime::GenerateRequest& request, int,
                                         std::span<const int32_t>,
                                         std::span<const int32_t> text) override {
    opened_at_ = static_cast<int64_t>(text.size());
    return std::make_unique<CountingDrafter>(this, request);
  }
  std::atomic<int64_t> calls{0}, tokens{0}, told{0}, opened_at_{-1};

 private:
  class CountingDrafter final : public runtime::Drafter {
   public:
    CountingDrafter(CountingSource* owner, const runtime::GenerateRequest& request)
        : owner_(*owner),
          drafter_(
              DraftScript::kSometimes,
              [&] {
                Text truth = request.prompt;
                const Text answer = greedy_answer(request.prompt, request.max_tokens);
                truth.insert(truth.end(), answer.begin(), answer.end());
                return truth;
              }(),
              kVocab, owner->right_, request.prompt.front()) {}
    void draft(std::span<const int32_t> text, int wanted, runtime::DraftList* drafts) override {
      ++owner_.calls;
      drafter_.draft(text, wanted, drafts);
      owner_.tokens += drafts->size();
    }
    void committed(std::span<const int32_t>) override { ++owner_.told; }

   private:
    CountingSource& owner_;
    ScriptedDrafter drafter_;
  };
  const double right_;
};

class RoutedBed {
 public:
  RoutedBed(Routing routing, double right) : world_(400, 16) {
    runtime::EngineParts parts;
    const runtime::StepLimits limits{
        .max_rows = 64, .max_sequences = 8, .max_blocks = 120, .max_logit_rows = 64};
    parts.models.push_back(std::make_unique<RoutedModel>(&world_, limits, routing, &clock_));
    parts.kv = {.block_size = 16, .num_blocks = 400, .bytes_per_block = 1};
    auto source = std::make_unique<CountingSource>(right);
    source_ = source.get();
    parts.drafts = std::move(source);
    parts.clock = [this] { return clock_.now(); };
    runtime::EngineConfig config;
    config.stream_capacity = 4000;
    engine_ = *runtime::Engine::create(config, std::move(parts));
    engine_->start();
    EXPECT_TRUE(eventually([&] { return engine_->status().ready; }));
  }
  ~RoutedBed() {
    engine_->stop();
    EXPECT_EQ(world_.problem(), "");
  }

  // Tokens a second of two streams, on the virtual clock.
  double rate(SpeculationMode mode, int depth, int tokens) {
    const absl::Time begin = clock_.now();
    world_.frozen = true;  // nothing runs until both have come
    std::vector<std::shared_ptr<runtime::TokenStream>> streams;
    for (int i = 0; i < 2; ++i) {
      runtime::GenerateRequest request = request_of(some_prompt(i, 8), tokens);
      request.use_prefix_cache = false;
      request.speculation = {.mode = mode, .depth = depth};
      streams.push_back(*engine_->submit(request));
    }
    world_.frozen = false;
    world_.change_cluster();
    for (const auto& stream : streams) {
      EXPECT_EQ(read_answer(*stream, 1).samples[0].tokens.size(), static_cast<size_t>(tokens));
    }
    return 2 * tokens / absl::ToDoubleSeconds(clock_.now() - begin);
  }
  runtime::DraftingStatus drafting() {
    EXPECT_TRUE(eventually([&] { return engine_->idle(); }));
    return engine_->status().drafting;
  }
  CountingSource& source() { return *source_; }
  runtime::Engine& engine() { return *engine_; }

 private:
  VirtualClock clock_;
  ScriptedWorld world_;
  CountingSource* source_ = nullptr;
  std::unique_ptr<runtime::Engine> engine_;
};

double mean_depth(const runtime::DraftingStatus& before, const runtime::DraftingStatus& after) {
  int64_t drafted = 0;
  for (const int64_t count : after.drafted_by_position) drafted += count;
  for (const int64_t count : before.drafted_by_position) drafted -= count;
  return static_cast<double>(drafted) / static_cast<double>(after.passes - before.passes);
}

TEST(DepthCost, RoutingDecidesTheDepthAndTheChoiceWins) {
  std::vector<double> depths;
  for (const Routing routing : {Routing::kFew, Routing::kMany}) {
    double best = 0;
    for (const int depth : {0, 1, 2, 4, 8}) {
      RoutedBed bed(routing, 0.6);
      const SpeculationMode mode = depth == 0 ? SpeculationMode::kOff : SpeculationMode::kFixed;
      best = std::max(best, bed.rate(mode, depth, 300));
    }
    RoutedBed bed(routing, 0.6);
    bed.rate(SpeculationMode::kAuto, 0, 600);  // learns
    const runtime::DraftingStatus before = bed.drafting();
    const double rate = bed.rate(SpeculationMode::kAuto, 0, 900);
    const runtime::DraftingStatus after = bed.drafting();
    depths.push_back(mean_depth(before, after));
    std::printf(
        "mean depth %.2f, %.3f of the best fixed depth, slowest worker reads %.2f of %.2f\n",
        depths.back(), rate / best, after.slowest_experts / static_cast<double>(after.verify_steps),
        after.distinct_experts / static_cast<double>(after.verify_steps));
    EXPECT_GE(rate, 0.96 * best);  // other drafts than the fixed runs had
    EXPECT_GT(after.verify_steps, 0);
    EXPECT_GT(after.slowest_experts, 0);
    EXPECT_LE(after.slowest_experts, after.distinct_experts);
  }
  EXPECT_GE(depths[0], depths[1] + 2) << "few experts awake, and many";
}

// Wrong drafts where rows are dear: after the first looks the drafters are hardly called, and not
// told what is committed either.
TEST(DepthCost, DraftsThatDoNotPayLetTheDrafterRest) {
  RoutedBed bed(Routing::kMany, 0.1);
  const double off = bed.rate(SpeculationMode::kOff, 0, 800);
  EXPECT_EQ(bed.source().calls, 0);
  bed.rate(SpeculationMode::kAuto, 0, 1200);
  const int64_t calls = bed.source().calls, told = bed.source().told;
  EXPECT_GT(calls, 0);
  const runtime::DraftingStatus before = bed.drafting();
  const double rate = bed.rate(SpeculationMode::kAuto, 0, 1200);
  const int64_t passes = bed.drafting().passes - before.passes;
  const int64_t more_calls = bed.source().calls - calls, more_told = bed.source().told - told;
  std::printf("%lld of %lld passes called a drafter, %lld told one; %.4f of plain speed\n",
              static_cast<long long>(more_calls), static_cast<long long>(passes),
              static_cast<long long>(more_told), rate / off);
  EXPECT_LE(more_calls, passes / 8);
  EXPECT_LE(more_told, passes / 8);
  EXPECT_GE(rate, 0.98 * off);
}

TEST(DepthCost, DraftersOpenWithTheirRequestAndOnlyIfWanted) {
  RoutedBed bed(Routing::kFew, 0.9);
  bed.rate(SpeculationMode::kFixed, 2, 4);
  EXPECT_EQ(bed.source().opened_at_, 8);  // the prompt; its first token was not there yet
}

}  // namespace
}  // namespace brigade::tests
