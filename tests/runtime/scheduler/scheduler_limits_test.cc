// What the scheduler refuses, lets expire, cancels and pauses.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/scheduler/scheduler.h"
#include "tests/runtime/scheduler/scheduler_bed.h"

namespace brigade::tests {
namespace {

using runtime::SequenceState;

// inference-sim/inference-sim issue 373: a request that can never fit looped for ever.
TEST(Scheduler, RefusesWhatCanNeverFitWithTheNumbers) {
  SchedulerBed bed({});
  const auto refused = bed.submit({.prompt = SchedulerBed::prompt(1, 57 * 16), .max_tokens = 1});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("need 57 KV blocks"));
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("the cache has 50"));
  // A prompt that fits with an answer that does not.
  EXPECT_FALSE(bed.submit({.prompt = SchedulerBed::prompt(1, 49 * 16), .max_tokens = 18}).ok());
  // All of it, to the last block: the last token needs no KV.
  const auto all = bed.submit({.prompt = SchedulerBed::prompt(1, 49 * 16), .max_tokens = 17});
  ASSERT_TRUE(all.ok());
  EXPECT_TRUE(bed.run(200));
  expect_complete(**all);
  expect_clean(bed);
}

// Reports of queues without a bound: 4 running, 8 waiting, 100 calls.
TEST(Scheduler, RefusesExactlyTheOverflow) {
  BedConfig config{.blocks = 1000};
  config.scheduler.max_running_sequences = 4;
  config.max_waiting_requests = 8;
  SchedulerBed bed(config);
  std::vector<BedRequest*> accepted;
  int refused = 0;
  for (int i = 0; i < 100; ++i) {
    const auto request = bed.submit({.prompt = SchedulerBed::prompt(i, 20), .max_tokens = 5});
    if (request.ok()) {
      accepted.push_back(*request);
      continue;
    }
    ++refused;
    EXPECT_EQ(request.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(request.status().message()), testing::HasSubstr("queue is full"));
  }
  EXPECT_EQ(accepted.size(), 12u);
  EXPECT_EQ(refused, 88);
  ASSERT_TRUE(bed.run(100));
  for (const BedRequest* request : accepted) expect_complete(*request);
  expect_clean(bed);
}

TEST(Scheduler, TheQueueIsBoundedByTokensToo) {
  BedConfig config{.blocks = 1000};
  config.scheduler.max_running_sequences = 1;
  config.max_waiting_tokens = 100;
  SchedulerBed bed(config);
  ASSERT_TRUE(bed.submit({.prompt = SchedulerBed::prompt(0, 500)}).ok());  // runs
  ASSERT_TRUE(bed.submit({.prompt = SchedulerBed::prompt(1, 60)}).ok());
  const auto refused = bed.submit({.prompt = SchedulerBed::prompt(2, 60)});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("bound is 100"));
  EXPECT_TRUE(bed.submit({.prompt = SchedulerBed::prompt(3, 40)}).ok());
  EXPECT_TRUE(bed.run(100));
  expect_clean(bed);
}

TEST(Scheduler, TheQueueDeadlineAnswersWithoutAStep) {
  BedConfig config{.blocks = 100};
  config.scheduler.max_running_sequences = 1;
  config.scheduler.queue_timeout = absl::Milliseconds(200);
  SchedulerBed bed(config);
  BedRequest* runs = *bed.submit({.prompt = SchedulerBed::prompt(0, 20), .max_tokens = 50});
  BedRequest* waits = *bed.submit({.prompt = SchedulerBed::prompt(1, 20), .max_tokens = 50});
  bed.step();
  EXPECT_EQ(bed.scheduler().next_expiry(), bed.now() + absl::Milliseconds(200));
  bed.advance_clock(absl::Milliseconds(199));
  bed.step();
  EXPECT_FALSE(waits->answered);
  bed.advance_clock(absl::Milliseconds(1));
  bed.step();
  EXPECT_EQ(waits->end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(waits->sent[0].empty());
  ASSERT_TRUE(bed.run(100));
  expect_complete(*runs);
  expect_clean(bed);
}

TEST(Scheduler, ADeadlineEndsARunningRequest) {
  SchedulerBed bed({});
  BedRequest* request = *bed.submit(
      {.prompt = SchedulerBed::prompt(0, 20), .max_tokens = 500, .deadline = absl::Seconds(3)});
  for (int i = 0; i < 10; ++i) bed.step();
  EXPECT_GT(request->sent[0].size(), 5u);
  bed.advance_clock(absl::Seconds(3));
  bed.step();
  EXPECT_EQ(request->end.code(), absl::StatusCode::kDeadlineExceeded);
  expect_clean(bed);
}

// ROCm/ATOM pull 1562: the client had gone and the server worked on, blocks held.
TEST(Scheduler, CancelInEveryStateLeaksNothing) {
  const BedCall call{.prompt = SchedulerBed::prompt(1, 200), .max_tokens = 100};
  for (const std::string state : {"queued", "prefill", "decode", "preempted", "paused", "in flight",
                                  "before the fork", "one of three finished"}) {
    SCOPED_TRACE(state);
    BedConfig config{.blocks = state == "preempted" ? 28 : 40};
    config.scheduler.prefill_chunk = 32;
    config.scheduler.max_running_sequences = state == "queued" ? 1 : 8;
    config.scheduler.microbatches = state == "in flight" ? 3 : 1;
    SchedulerBed bed(config);
    BedRequest* other = nullptr;
    if (state == "queued" || state == "preempted" || state == "in flight") {
      other = *bed.submit({.prompt = SchedulerBed::prompt(7, 100), .max_tokens = 300});
    }
    BedCall mine = call;
    if (state == "before the fork" || state == "one of three finished") mine.sequences = 3;
    BedRequest* request = *bed.submit(mine);
    const auto in_state = [&] {
      const runtime::ScheduledSequence& sequence = *request->sequences[0];
      if (state == "queued") return sequence.state == SequenceState::kQueued && bed.steps() > 3;
      if (state == "prefill") return sequence.computed == 64;
      if (state == "before the fork") return sequence.computed == 64 && !request->forked;
      if (state == "preempted") return sequence.state == SequenceState::kPreempted;
      if (state == "paused") return sequence.paused();
      if (state == "in flight") return sequence.in_flight;
      if (state == "one of three finished") return request->sent[1].size() > 3;
      return request->sent[0].size() > 3;
    };
    if (state == "paused") request->reads = false;
    for (int i = 0; !in_state(); ++i) {
      ASSERT_LT(i, 1000);
      bed.step();
    }
    if (state == "one of three finished")
      bed.scheduler().end(request->sequences[1]), ++request->ended;
    bed.cancel(request);
    if (other != nullptr) {
      ASSERT_TRUE(bed.run(1000));
      expect_complete(*other);
    }
    EXPECT_EQ(request->end.code(), absl::StatusCode::kCancelled);
    expect_clean(bed);
  }
}

// A paused sequence keeps its blocks only while nobody needs them.
TEST(Scheduler, APausedSequenceGivesItsBlocksToAnyone) {
  BedConfig config{.blocks = 20, .stream_capacity = 4};
  SchedulerBed bed(config);
  BedRequest* paused = *bed.submit({.prompt = SchedulerBed::prompt(1, 160), .max_tokens = 100});
  paused->reads = false;
  for (int i = 0; i < 10; ++i) bed.step();
  EXPECT_TRUE(paused->sequences[0]->paused());
  BedRequest* normal = *bed.submit({.prompt = SchedulerBed::prompt(2, 240), .max_tokens = 60});
  for (int i = 0; !normal->answered; ++i) {
    ASSERT_LT(i, 100);
    bed.step();
  }
  expect_complete(*normal);
  EXPECT_EQ(paused->sequences[0]->state, SequenceState::kPreempted);
  paused->reads = true;
  ASSERT_TRUE(bed.run(300));
  expect_complete(*paused);
  EXPECT_EQ(paused->sequences[0]->preemptions, 1);
  expect_clean(bed);
}
}  // namespace
}  // namespace brigade::tests
