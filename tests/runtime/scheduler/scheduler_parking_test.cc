// Sequences that wait for an expert nobody holds: when they are tried again, what they keep, and
// that a step they left counts for nothing.
#include "gtest/gtest.h"
#include "tests/runtime/scheduler/scheduler_bed.h"

namespace brigade::tests {
namespace {

using runtime::ScheduledSequence;
using runtime::SequenceState;
using runtime::StepSlice;

const auto kEveryone = [](const StepSlice&) { return true; };

TEST(SchedulerParking, LeavesTheSequenceWhereItWas) {
  SchedulerBed bed({});
  BedRequest* request =
      *bed.submit({.prompt = SchedulerBed::prompt(1, 40), .max_tokens = 5, .sequences = 3});
  const ScheduledSequence& sequence = *request->sequences[0];
  bed.parks = kEveryone;
  EXPECT_EQ(bed.step(), 40);
  EXPECT_TRUE(sequence.parked());
  EXPECT_EQ(sequence.computed, 0);
  EXPECT_EQ(sequence.committed_blocks, 0);
  EXPECT_FALSE(request->forked);
  EXPECT_EQ(request->events_in_flight, 0u);
  EXPECT_TRUE(request->sent[0].empty());
  EXPECT_EQ(bed.scheduler().counters().prompt_rows, 0);
  EXPECT_EQ(bed.scheduler().parked_sequences(), 1);
  // Nobody finds a prefix that was never computed.
  BedRequest* same = *bed.submit({.prompt = SchedulerBed::prompt(1, 40), .max_tokens = 5});
  bed.parks = nullptr;
  bed.step();
  EXPECT_EQ(same->sequences[0]->cached_tokens, 0);
  bed.advance_clock(absl::Milliseconds(50));
  ASSERT_TRUE(bed.run(20));
  expect_complete(*request);
  expect_complete(*same);
  EXPECT_EQ(bed.scheduler().counters().prompt_rows, 80);
  EXPECT_EQ(bed.scheduler().counters().parkings, 1);
  expect_clean(bed);
}

TEST(SchedulerParking, IsTriedAgainAfterAPeriodThatDoubles) {
  SchedulerBed bed({});
  BedRequest* request = *bed.submit({.prompt = SchedulerBed::prompt(1, 20), .max_tokens = 5});
  bed.parks = kEveryone;
  for (const int wait_ms : {50, 100, 200, 400, 800, 800, 800}) {
    EXPECT_EQ(bed.step(), 20);
    EXPECT_EQ(bed.step(), 0);
    EXPECT_EQ(bed.scheduler().next_retry(bed.now()), bed.now() + absl::Milliseconds(wait_ms));
    bed.advance_clock(absl::Milliseconds(wait_ms - 1));
    EXPECT_EQ(bed.step(), 0);
    bed.advance_clock(absl::Milliseconds(1));
    // Due: no longer a time to sleep for, or the loop would spin while it cannot be planned.
    EXPECT_EQ(bed.scheduler().next_retry(bed.now()), absl::InfiniteFuture());
  }
  bed.parks = nullptr;
  ASSERT_TRUE(bed.run(10));
  expect_complete(*request);
  expect_clean(bed);
}

TEST(SchedulerParking, IsTriedAgainAtOnceWhenTheClusterChanges) {
  BedConfig config;
  config.scheduler.microbatches = 2;
  SchedulerBed bed(config);
  BedRequest* request = *bed.submit({.prompt = SchedulerBed::prompt(1, 20), .max_tokens = 5});
  bed.parks = kEveryone;
  EXPECT_EQ(bed.step(), 20);
  EXPECT_EQ(bed.step(), 0);
  bed.scheduler().cluster_changed();
  EXPECT_EQ(bed.step(), 20);
  // The change comes while the step is under way: what it saw is no longer so.
  bed.scheduler().cluster_changed();
  bed.parks = [&](const StepSlice&) {
    bed.scheduler().cluster_changed();
    return true;
  };
  EXPECT_EQ(bed.step(), 20);
  bed.parks = nullptr;
  EXPECT_EQ(bed.step(), 20);
  ASSERT_TRUE(bed.run(10));
  expect_complete(*request);
  expect_clean(bed);
}

TEST(SchedulerParking, TheOthersGoOn) {
  SchedulerBed bed({});
  BedRequest* parked = *bed.submit({.prompt = SchedulerBed::prompt(1, 20), .max_tokens = 30});
  BedRequest* other = *bed.submit({.prompt = SchedulerBed::prompt(2, 20), .max_tokens = 30});
  for (int i = 0; i < 5; ++i) bed.step();
  const size_t before = parked->sent[0].size();
  bed.parks = [&](const StepSlice& slice) { return slice.sequence->request == parked; };
  for (int i = 0; i < 100 && !other->answered; ++i) bed.step();
  expect_complete(*other);
  EXPECT_EQ(parked->sent[0].size(), before);
  bed.parks = nullptr;
  bed.scheduler().cluster_changed();
  ASSERT_TRUE(bed.run(100));
  expect_complete(*parked);
  expect_clean(bed);
}

TEST(SchedulerParking, AParkedSequenceCanLoseItsBlocks) {
  BedConfig config{.blocks = 7};
  SchedulerBed bed(config);
  BedRequest* older = *bed.submit(
      {.prompt = SchedulerBed::prompt(1, 40), .max_tokens = 60, .use_prefix_cache = false});
  BedRequest* younger = *bed.submit(
      {.prompt = SchedulerBed::prompt(2, 30), .max_tokens = 30, .use_prefix_cache = false});
  for (int i = 0; i < 3; ++i) bed.step();
  bed.parks = [&](const StepSlice& slice) { return slice.sequence->request == younger; };
  for (int i = 0; i < 100 && !older->answered; ++i) bed.step();
  expect_complete(*older);
  EXPECT_EQ(younger->sequences[0]->state, SequenceState::kPreempted);
  EXPECT_TRUE(younger->sequences[0]->parked());
  EXPECT_EQ(bed.scheduler().parked_sequences(), 1);
  bed.parks = nullptr;
  bed.step();
  bed.scheduler().cluster_changed();
  ASSERT_TRUE(bed.run(100));
  expect_complete(*younger);
  expect_clean(bed);
}

TEST(SchedulerParking, CancelAndDeadlineEndIt) {
  SchedulerBed bed({});
  BedRequest* cancelled = *bed.submit({.prompt = SchedulerBed::prompt(1, 20), .max_tokens = 30});
  BedRequest* late = *bed.submit(
      {.prompt = SchedulerBed::prompt(2, 20), .max_tokens = 30, .deadline = absl::Seconds(2)});
  bed.parks = kEveryone;
  bed.step();
  bed.cancel(cancelled);
  bed.advance_clock(absl::Seconds(2));
  bed.step();
  EXPECT_EQ(late->end.code(), absl::StatusCode::kDeadlineExceeded);
  expect_clean(bed);
}

}  // namespace
}  // namespace brigade::tests
