// Time and readers: deadlines, streams that nobody reads, drain, stop, warm-up, the watchdog.
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/engine/engine.h"
#include "tests/runtime/engine/engine_bed.h"

namespace brigade::tests {
namespace {

using runtime::FinishReason;
using runtime::GenerateRequest;
using testing::HasSubstr;

std::string message_of(const absl::Status& status) { return std::string(status.message()); }

TEST(Engine, DeadlinesHoldWhileQueuedAndWhileAStepHangs) {
  EngineBedConfig config;
  config.engine.max_running_sequences = 1;
  config.engine.queue_timeout = absl::Milliseconds(500);
  config.engine.stall_limit = absl::Milliseconds(400);
  EngineBed bed(config);
  bed.world().frozen = true;
  GenerateRequest request = request_of(some_prompt(1, 6), 4);
  request.deadline = absl::Now() + absl::Milliseconds(1200);
  const auto running = *bed.submit(request);
  ASSERT_TRUE(eventually([&] { return bed.engine().status().running_sequences == 1; }));
  const Answer queued = bed.generate(request_of(some_prompt(2, 6), 4));
  EXPECT_EQ(queued.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(message_of(queued.status), HasSubstr("waited in the queue for 500ms"));
  const Answer late = read_answer(*running, 1);
  EXPECT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded);
  bed.world().frozen = false;
  EXPECT_EQ(bed.leak(), "");
  EXPECT_EQ(bed.engine().status().requests_expired, 2);
}

// grpc/grpc issue 37715: one who does not read costs a bounded queue, not the others' time.
TEST(Engine, ASlowReaderPausesOnlyItself) {
  EngineBedConfig config;
  config.engine.stream_capacity = 5;
  EngineBed bed(config);
  const auto slow = *bed.submit(request_of(some_prompt(1, 6), 100));
  ASSERT_TRUE(eventually([&] { return bed.engine().status().paused_for_reader == 1; }));
  const Answer normal = bed.generate(request_of(some_prompt(2, 6), 100));
  EXPECT_EQ(normal.samples[0].tokens, greedy_answer(some_prompt(2, 6), 100));
  EXPECT_TRUE(eventually([&] { return bed.engine().status().generated_tokens == 105; }));
  EXPECT_EQ(read_answer(*slow, 1).samples[0].tokens, greedy_answer(some_prompt(1, 6), 100));
  EXPECT_EQ(bed.leak(), "");
}

TEST(Engine, SiblingsOfASlowReaderWakeWhenThereIsRoomForAll) {
  EngineBedConfig config;
  config.engine.stream_capacity = 4;
  EngineBed bed(config);
  GenerateRequest request = request_of(some_prompt(1, 6), 40);
  request.num_sequences = 3;
  request.sampling.temperature = 1;
  const auto stream = *bed.submit(request);
  ASSERT_TRUE(eventually([&] { return bed.engine().status().paused_for_reader > 0; }));
  const Answer answer = read_answer(*stream, 3);
  for (const auto& sample : answer.samples) EXPECT_EQ(sample.tokens.size(), 40u);
  EXPECT_EQ(bed.leak(), "");
}

TEST(Engine, AReaderThatNeverReadsIsCancelled) {
  EngineBedConfig config;
  config.engine.stream_capacity = 5;
  config.engine.reader_timeout = absl::Milliseconds(50);
  EngineBed bed(config);
  const auto slow = *bed.submit(request_of(some_prompt(1, 6), 100));
  ASSERT_TRUE(eventually([&] { return bed.engine().idle(); }));
  const Answer answer = read_answer(*slow, 1);
  EXPECT_EQ(answer.samples[0].tokens.size(), 5u);
  EXPECT_EQ(answer.samples[0].finish, FinishReason::kCancelled);
  EXPECT_THAT(message_of(answer.status), HasSubstr("read nothing for 50ms"));
  EXPECT_EQ(bed.leak(), "");
}

TEST(Engine, DrainFinishesStreamsAndTakesNoMore) {
  EngineBed bed({});
  bed.world().frozen = true;
  const auto stream = *bed.submit(request_of(some_prompt(1, 6), 30));
  bed.engine().start_drain();
  EXPECT_EQ(bed.submit(request_of(some_prompt(2, 6), 3)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(bed.engine().status().draining);
  EXPECT_FALSE(bed.engine().idle());
  bed.world().frozen = false;
  EXPECT_EQ(read_answer(*stream, 1).samples[0].tokens.size(), 30u);
  EXPECT_TRUE(eventually([&] { return bed.engine().idle(); }));
  EXPECT_EQ(bed.leak(), "");
}

TEST(Engine, StopEndsWhatRunsAndStreamsOutliveIt) {
  std::shared_ptr<runtime::TokenStream> running, queued;
  {
    EngineBedConfig config;
    config.engine.max_running_sequences = 1;
    EngineBed bed(config);
    bed.world().frozen = true;
    running = *bed.submit(request_of(some_prompt(1, 6), 30));
    queued = *bed.submit(request_of(some_prompt(2, 6), 30));
    bed.engine().stop();
    bed.engine().stop();
    EXPECT_EQ(bed.submit(request_of(some_prompt(3, 6), 3)).status().code(),
              absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(read_answer(*running, 1).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(read_answer(*queued, 1).status.code(), absl::StatusCode::kUnavailable);
  running->cancel();  // wakes a waker that the stream keeps alive
}

TEST(Engine, IsNotReadyWhenTheWarmUpStepFails) {
  EngineBed bed({.prepare = [](ScriptedWorld& world) { world.error_token = 0; }},
                /*wait_ready=*/false);
  ASSERT_TRUE(eventually([&] {
    return bed.engine().status().not_ready_reason.find("scripted failure") != std::string::npos;
  }));
  EXPECT_FALSE(bed.engine().status().ready);
  const auto refused = bed.submit(request_of(some_prompt(1, 6), 3));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(message_of(refused.status()), HasSubstr("not ready: scripted failure"));
}

TEST(Engine, TheWarmUpStepHasADeadline) {
  EngineBedConfig config{.prepare = [](ScriptedWorld& world) { world.frozen = true; }};
  config.engine.warm_up_timeout = absl::Milliseconds(30);
  EngineBed bed(config, /*wait_ready=*/false);
  EXPECT_TRUE(eventually([&] {
    return bed.engine().status().not_ready_reason.find("did not end within 30ms") !=
           std::string::npos;
  }));
}

// Health that meant only the listener (Neroued/ninfer issue 155): a stuck loop shows, an idle one
// and one that only waits for readers do not.
TEST(Engine, TheWatchdogTellsAStuckLoopFromAnIdleOne) {
  EngineBedConfig config;
  config.engine.stall_limit = absl::Milliseconds(400);
  config.engine.stream_capacity = 2;
  EngineBed bed(config);
  absl::SleepFor(absl::Milliseconds(600));
  EXPECT_TRUE(bed.engine().status().step_loop_alive);
  const auto paused = *bed.submit(request_of(some_prompt(1, 6), 30));
  ASSERT_TRUE(eventually([&] { return bed.engine().status().paused_for_reader > 0; }));
  absl::SleepFor(absl::Milliseconds(600));
  EXPECT_TRUE(bed.engine().status().step_loop_alive);
  bed.world().frozen = true;
  const auto stuck = *bed.submit(request_of(some_prompt(2, 6), 2));
  EXPECT_TRUE(eventually([&] { return !bed.engine().status().step_loop_alive; }));
  bed.world().frozen = false;
  EXPECT_TRUE(eventually([&] { return bed.engine().status().step_loop_alive; }));
  EXPECT_EQ(read_answer(*stuck, 1).samples[0].tokens.size(), 2u);
  EXPECT_EQ(read_answer(*paused, 1).samples[0].tokens.size(), 30u);
}

TEST(EngineConfig, NamesTheSettingThatIsOutOfBounds) {
  runtime::EngineConfig config;
  EXPECT_TRUE(validate(config).ok());
  config.prefill_chunk = 0;
  EXPECT_EQ(validate(config).message(), "engine.prefill_chunk is 0, must be from 1 to 65536");
  config = {};
  config.reader_timeout = absl::ZeroDuration();
  EXPECT_THAT(message_of(validate(config)), HasSubstr("engine.reader_timeout is 0"));
}

}  // namespace
}  // namespace brigade::tests
