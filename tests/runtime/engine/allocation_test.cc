// A decode step allocates nothing: every operator new on the step thread is counted over 100 steps
// of a few streams, greedy and sampled, with penalties.
#include <atomic>
#include <cstdlib>
#include <new>

#include "gtest/gtest.h"
#include "runtime/model/expert_use.h"
#include "tests/runtime/engine/engine_bed.h"

namespace {

thread_local bool counting = false;
std::atomic<long> allocations = 0;

void* counted(std::size_t bytes) {
  if (counting) ++allocations;
  if (void* data = std::malloc(bytes)) return data;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }

namespace brigade::tests {
namespace {

constexpr int kFirstCounted = 30, kCountedSteps = 100;

// Switches counting on and off on the step thread itself.
class CountingModel : public ScriptedModel {
 public:
  CountingModel(ScriptedWorld* world, int vocab, const runtime::StepLimits& limits)
      : ScriptedModel(world, vocab, limits) {
    for (int layer = 0; layer < 3; ++layer) use_.add_layer(8);
  }
  // The engine follows where rows went.
  const runtime::ExpertUse* expert_use() const override { return &use_; }
  absl::Status begin(const runtime::StepBatch& batch, kernels::Waker* waker) override {
    ++steps_;
    counting = steps_ >= kFirstCounted && steps_ < kFirstCounted + kCountedSteps;
    use_.begin_step();
    for (int layer = 0; layer < 3; ++layer) use_.count(layer, steps_ % 8);
    use_.end_step(1);
    return ScriptedModel::begin(batch, waker);
  }

 private:
  int steps_ = 0;
  runtime::ExpertUse use_;
};

void count_hundred_steps(runtime::SpeculationMode speculation) {
  allocations = 0;
  constexpr int kVocab = 97;
  ScriptedWorld world(200, 16);
  runtime::EngineParts parts;
  const runtime::StepLimits limits{
      .max_rows = 64, .max_sequences = 16, .max_blocks = 64, .max_logit_rows = 16};
  parts.models.push_back(std::make_unique<CountingModel>(&world, kVocab, limits));
  parts.kv = {.block_size = 16, .num_blocks = 200, .bytes_per_block = 1};
  runtime::EngineConfig config;
  config.stream_capacity = 300;
  auto engine = *runtime::Engine::create(config, std::move(parts));
  engine->start();
  ASSERT_TRUE(eventually([&] { return engine->status().ready; }));
  // Nothing runs until all have come: drafters are opened with their requests.
  world.frozen = true;
  std::vector<std::shared_ptr<runtime::TokenStream>> streams;
  for (int i = 0; i < 4; ++i) {
    runtime::GenerateRequest request = request_of(some_prompt(i, 20), 200);
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.8;
    request.sampling.top_p = i == 3 ? 0.9 : 1;
    request.sampling.frequency_penalty = i >= 2 ? 0.3 : 0;
    request.speculation = {.mode = speculation, .depth = 4};
    // A text that repeats itself: prompt lookup drafts at every step.
    if (speculation != runtime::SpeculationMode::kOff) {
      request.prompt.assign(20, i);
      request.sampling.logit_bias = {{i, 100.0f}};
      request.sampling.frequency_penalty = 0;
      request.max_tokens = 700;
    }
    request.cache_salt = "a salt that is too long to be kept inside a string object";
    streams.push_back(*engine->submit(request));
  }
  world.frozen = false;
  world.change_cluster();
  for (const auto& stream : streams)
    EXPECT_GE(read_answer(*stream, 1).samples[0].tokens.size(), 200u);
  EXPECT_GE(world.steps, kFirstCounted + kCountedSteps);
  EXPECT_EQ(allocations, 0);
  const bool speculates = speculation != runtime::SpeculationMode::kOff;
  const bool fixed = speculation == runtime::SpeculationMode::kFixed;
  EXPECT_EQ(engine->status().accepted_drafts > 0, speculates);
  if (fixed) {
    EXPECT_GT(engine->status().accepted_drafts, 400);
  }
  engine->stop();
  EXPECT_EQ(world.problem(), "");
}

TEST(Allocation, AHundredDecodeStepsAllocateNothing) {
  count_hundred_steps(runtime::SpeculationMode::kOff);
}

TEST(Allocation, AHundredStepsWithDraftsAllocateNothing) {
  count_hundred_steps(runtime::SpeculationMode::kFixed);
}

TEST(Allocation, AHundredStepsUnderDepthControlAllocateNothing) {
  count_hundred_steps(runtime::SpeculationMode::kAuto);
}

}  // namespace
}  // namespace brigade::tests
