#include "runtime/scheduler/scheduler.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

// inference-sim/inference-sim issue 373, Avarok-Cybersecurity/atlas pull 375: a nearly full cache
// evicted and restarted without progress.
TEST(Scheduler, FourGrowingRequestsAllFinishOldestFirst) {
  SchedulerBed bed({});
  std::vector<BedRequest*> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(*bed.submit({.prompt = SchedulerBed::prompt(i, 4 * 16),
                                    .max_tokens = 16 * 16 + 1,
                                    .use_prefix_cache = false}));
  }
  ASSERT_TRUE(bed.run(3000));
  int64_t last = 0;
  for (const BedRequest* request : requests) {
    expect_complete(*request);
    EXPECT_GE(request->sent_at_step[0].back(), last);
    last = request->sent_at_step[0].back();
    EXPECT_LE(request->sequences[0]->preemptions, 4);
  }
  EXPECT_EQ(requests[0]->sequences[0]->preemptions, 0);
  EXPECT_GT(bed.scheduler().counters().preemptions, 0);
  expect_clean(bed);
}

// inference-sim/inference-sim issue 373: one missing block failed the whole batch.
TEST(Scheduler, OneMissingBlockCostsOneVictim) {
  SchedulerBed bed({.blocks = 6});
  std::vector<BedRequest*> requests;
  for (int i = 0; i < 3; ++i) {
    // The first one needs its third block while the others stay within two.
    const int length = i == 0 ? 20 : 17;
    requests.push_back(*bed.submit({.prompt = SchedulerBed::prompt(i, length),
                                    .max_tokens = i == 0 ? 20 : 15,
                                    .use_prefix_cache = false}));
  }
  // 2 + 2 + 2 blocks only fit once nothing is kept back for growth: start them one after another.
  ASSERT_TRUE(bed.run(200));
  for (const BedRequest* request : requests) expect_complete(*request);
  EXPECT_LE(bed.scheduler().counters().preemptions, 1);
  expect_clean(bed);
}

TEST(Scheduler, TheYoungestGivesItsBlocks) {
  BedConfig config{.blocks = 7};
  config.scheduler.prefill_chunk = 64;
  SchedulerBed bed(config);
  std::vector<BedRequest*> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(*bed.submit(
        {.prompt = SchedulerBed::prompt(i, 15), .max_tokens = 34, .use_prefix_cache = false}));
  }
  while (bed.scheduler().counters().preemptions == 0) ASSERT_GT(bed.step(), 0);
  EXPECT_EQ(requests[2]->sequences[0]->state, SequenceState::kPreempted);
  EXPECT_EQ(requests[1]->sequences[0]->state, SequenceState::kRunning);
  EXPECT_EQ(requests[0]->sequences[0]->state, SequenceState::kRunning);
  EXPECT_EQ(bed.scheduler().counters().preemptions, 1);
  ASSERT_TRUE(bed.run(300));
  for (const BedRequest* request : requests) expect_complete(*request);
  expect_clean(bed);
}

int64_t worst_gap(const std::vector<int64_t>& steps) {
  int64_t worst = 0;
  for (size_t i = 1; i < steps.size(); ++i) worst = std::max(worst, steps[i] - steps[i - 1]);
  return worst;
}

// ROCm/ATOM pull 1835: a long prompt froze every stream for its whole prefill.
TEST(Scheduler, ALongPromptDoesNotFreezeAStream) {
  BedConfig config{.blocks = 2000};
  config.scheduler.prefill_chunk = 64;
  config.scheduler.max_rows = 80;
  SchedulerBed bed(config);
  BedRequest* stream = *bed.submit({.prompt = SchedulerBed::prompt(1, 64), .max_tokens = 400});
  for (int i = 0; i < 5; ++i) bed.step();
  const int64_t submitted = bed.steps();
  BedRequest* prompt = *bed.submit({.prompt = SchedulerBed::prompt(2, 200 * 64), .max_tokens = 2});
  ASSERT_TRUE(bed.run(1000));
  expect_complete(*stream);
  expect_complete(*prompt);
  EXPECT_EQ(worst_gap(stream->sent_at_step[0]), 1);  // a token in every step, beside a chunk
  EXPECT_EQ(prompt->sent_at_step[0][0] - submitted, 200);
  expect_clean(bed);
}

// The other side: more streams than a step has rows leave the prompt its share.
TEST(Scheduler, AFloodOfStreamsDoesNotStarveAPrompt) {
  BedConfig config{.blocks = 4000};
  config.scheduler.max_running_sequences = 100;
  config.scheduler.max_step_sequences = 100;
  config.scheduler.max_logit_rows = 100;
  config.scheduler.max_rows = 32;
  config.scheduler.prefill_chunk = 16;
  config.scheduler.prefill_reserve = 8;
  SchedulerBed bed(config);
  std::vector<BedRequest*> streams;
  for (int i = 0; i < 60; ++i) {
    streams.push_back(*bed.submit({.prompt = SchedulerBed::prompt(i, 4), .max_tokens = 300}));
  }
  for (int i = 0; i < 40; ++i) bed.step();
  BedRequest* prompt = *bed.submit({.prompt = SchedulerBed::prompt(99, 800), .max_tokens = 2});
  const int64_t submitted = bed.steps();
  // New short requests keep arriving.
  for (int i = 0; i < 30; ++i) {
    streams.push_back(*bed.submit({.prompt = SchedulerBed::prompt(200 + i, 4), .max_tokens = 40}));
    bed.step();
  }
  while (prompt->sent[0].empty()) ASSERT_GT(bed.step(), 0);
  // At least the reserve of 8 rows in each step, shared with the newcomers' 4 rows each.
  EXPECT_LE(prompt->sent_at_step[0][0] - submitted, 800 / 8 + 40);
  ASSERT_TRUE(bed.run(3000));
  for (const BedRequest* stream : streams) {
    expect_complete(*stream);
    // 24 rows for at most 90 streams: each is served at least every 4 steps.
    EXPECT_LE(worst_gap(stream->sent_at_step[0]), 5);
  }
  expect_clean(bed);
}

TEST(Scheduler, AShortPromptDoesNotWaitForALongOne) {
  BedConfig config{.blocks = 200};
  config.scheduler.max_rows = 16;
  config.scheduler.prefill_chunk = 16;
  SchedulerBed bed(config);
  BedRequest* longer = *bed.submit({.prompt = SchedulerBed::prompt(1, 1600), .max_tokens = 2});
  bed.step();
  BedRequest* shorter = *bed.submit({.prompt = SchedulerBed::prompt(2, 8), .max_tokens = 2});
  const int64_t submitted = bed.steps();
  ASSERT_TRUE(bed.run(200));
  EXPECT_LE(shorter->sent_at_step[0][0] - submitted, 2);  // one chunk of the long prompt first
  expect_complete(*longer);
  expect_clean(bed);
}

TEST(Scheduler, TakesTurnsWhenAStepHoldsOneSequence) {
  BedConfig config{.blocks = 100};
  config.scheduler.max_step_sequences = 1;
  config.scheduler.max_logit_rows = 1;
  config.scheduler.prefill_chunk = 16;
  SchedulerBed bed(config);
  BedRequest* stream = *bed.submit({.prompt = SchedulerBed::prompt(1, 8), .max_tokens = 100});
  bed.step();
  BedRequest* prompt = *bed.submit({.prompt = SchedulerBed::prompt(2, 320), .max_tokens = 40});
  ASSERT_TRUE(bed.run(400));
  EXPECT_LE(worst_gap(stream->sent_at_step[0]), 2);
  expect_complete(*stream);
  expect_complete(*prompt);
  expect_clean(bed);
}

TEST(Scheduler, OneRowAStepStillServesEverybody) {
  BedConfig config{.blocks = 100};
  config.scheduler.max_rows = 1;
  SchedulerBed bed(config);
  BedRequest* a = *bed.submit({.prompt = SchedulerBed::prompt(1, 8), .max_tokens = 20});
  BedRequest* b = *bed.submit({.prompt = SchedulerBed::prompt(2, 30), .max_tokens = 20});
  ASSERT_TRUE(bed.run(200));
  expect_complete(*a);
  expect_complete(*b);
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

// grpc/grpc issue 37715: a slow reader made the server's memory grow for ever.
TEST(Scheduler, ASlowReaderPausesItselfAndNobodyElse) {
  BedConfig config{.blocks = 3000, .stream_capacity = 16};
  config.scheduler.max_running_sequences = 60;
  SchedulerBed bed(config);
  std::vector<BedRequest*> slow;
  for (int i = 0; i < 50; ++i) {
    slow.push_back(*bed.submit({.prompt = SchedulerBed::prompt(i, 20), .max_tokens = 700}));
    slow.back()->reads = false;
  }
  BedRequest* normal = *bed.submit({.prompt = SchedulerBed::prompt(99, 20), .max_tokens = 100});
  for (int i = 0; i < 130; ++i) bed.step();
  expect_complete(*normal);
  EXPECT_LE(worst_gap(normal->sent_at_step[0]), 1);
  for (const BedRequest* request : slow) {
    EXPECT_EQ(request->sent[0].size(), 16u);  // what the stream holds, and not one more
    EXPECT_TRUE(request->sequences[0]->paused());
  }
  // One of them reads again and goes on; the others have timed out.
  slow[0]->reads = true;
  bed.step();
  bed.advance_clock(absl::Seconds(61));
  ASSERT_TRUE(bed.run(800));
  expect_complete(*slow[0]);
  for (size_t i = 1; i < slow.size(); ++i)
    EXPECT_EQ(slow[i]->end.code(), absl::StatusCode::kCancelled);
  expect_clean(bed);
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

TEST(Scheduler, MicrobatchesShareTheDecodes) {
  BedConfig config{.blocks = 400};
  config.scheduler.microbatches = 2;
  SchedulerBed bed(config);
  std::vector<BedRequest*> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(*bed.submit({.prompt = SchedulerBed::prompt(i, 20), .max_tokens = 60}));
  }
  for (int i = 0; i < 20; ++i) bed.step();
  for (int i = 0; i < 20; ++i) {
    bed.step();
    EXPECT_EQ(bed.last_plan().slices.size(), 4u);
  }
  ASSERT_TRUE(bed.run(300));
  for (const BedRequest* request : requests) expect_complete(*request);
  expect_clean(bed);
}

// A sequence that was preempted often comes back with all it can need and is then left alone.
TEST(Scheduler, PreemptionsAreBounded) {
  BedConfig config{.blocks = 12, .block_size = 4};
  config.scheduler.max_preemptions = 2;
  SchedulerBed bed(config);
  std::vector<BedRequest*> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(*bed.submit({.prompt = SchedulerBed::prompt(i, 3),
                                    .max_tokens = 10 + 3 * (i % 5),
                                    .use_prefix_cache = false}));
  }
  ASSERT_TRUE(bed.run(2000));
  EXPECT_GT(bed.scheduler().counters().preemptions, 0);
  for (const BedRequest* request : requests) {
    expect_complete(*request);
    EXPECT_LE(request->sequences[0]->preemptions, 2);
  }
  expect_clean(bed);
}

}  // namespace
}  // namespace brigade::tests
