// Which KV blocks are shared, when, and between whom.
#include "gtest/gtest.h"
#include "tests/runtime/scheduler/scheduler_bed.h"

namespace brigade::tests {
namespace {

TEST(PrefixSharing, APrefixIsComputedOnce) {
  SchedulerBed bed({.blocks = 100});
  BedRequest* first = *bed.submit({.prompt = SchedulerBed::prompt(1, 100), .max_tokens = 5});
  ASSERT_TRUE(bed.run(100));
  const int64_t rows = bed.scheduler().counters().prompt_rows;
  EXPECT_EQ(rows, 100);
  BedRequest* again = *bed.submit({.prompt = SchedulerBed::prompt(1, 100), .max_tokens = 5});
  ASSERT_TRUE(bed.run(100));
  EXPECT_EQ(again->sequences[0]->cached_tokens, 96);
  EXPECT_EQ(bed.scheduler().counters().prompt_rows, rows + 4);
  BedRequest* salted =
      *bed.submit({.prompt = SchedulerBed::prompt(1, 100), .max_tokens = 5, .salt = "other"});
  BedRequest* unshared = *bed.submit(
      {.prompt = SchedulerBed::prompt(1, 100), .max_tokens = 5, .use_prefix_cache = false});
  ASSERT_TRUE(bed.run(100));
  EXPECT_EQ(salted->sequences[0]->cached_tokens, 0);
  EXPECT_EQ(unshared->sequences[0]->cached_tokens, 0);
  for (const BedRequest* request : {first, again, salted, unshared}) expect_complete(*request);
  expect_clean(bed);
}

// A prompt of whole blocks still runs its last token, in a block of its own.
TEST(PrefixSharing, AHitLeavesTheLastTokenToRun) {
  SchedulerBed bed({.blocks = 100});
  *bed.submit({.prompt = SchedulerBed::prompt(1, 96), .max_tokens = 3});
  ASSERT_TRUE(bed.run(100));
  BedRequest* again = *bed.submit({.prompt = SchedulerBed::prompt(1, 96), .max_tokens = 3});
  ASSERT_TRUE(bed.run(100));
  EXPECT_EQ(again->sequences[0]->cached_tokens, 80);
  expect_complete(*again);
  expect_clean(bed);
}

TEST(PrefixSharing, ATaintedRequestNeverEntersThePrefixTable) {
  SchedulerBed bed({.blocks = 100});
  BedRequest* tainted = *bed.submit({.prompt = SchedulerBed::prompt(1, 100), .max_tokens = 40});
  tainted->tainted = true;
  ASSERT_TRUE(bed.run(100));
  EXPECT_EQ(bed.blocks().cached(), 0);
  expect_complete(*tainted);
  expect_clean(bed);
}

// The prompt's KV may be bad until a finite row has been seen: nothing is shared before.
TEST(PrefixSharing, NothingIsSharedBeforeTheFirstToken) {
  BedConfig config{.blocks = 100};
  config.scheduler.prefill_chunk = 32;
  SchedulerBed bed(config);
  BedRequest* request = *bed.submit({.prompt = SchedulerBed::prompt(1, 100), .max_tokens = 4});
  bed.step();
  bed.step();
  ASSERT_EQ(request->sequences[0]->computed, 64);
  bed.cancel(request);
  EXPECT_EQ(bed.blocks().cached(), 0);
  expect_clean(bed);
}

TEST(PrefixSharing, SequencesOfARequestShareFullBlocksAndCopyTheLast) {
  for (const int length : {16, 40, 48}) {
    SCOPED_TRACE(length);
    SchedulerBed bed({.blocks = 100});
    BedRequest* request =
        *bed.submit({.prompt = SchedulerBed::prompt(1, length), .max_tokens = 30, .sequences = 4});
    bed.step();
    ASSERT_TRUE(request->forked);
    EXPECT_EQ(bed.scheduler().counters().prompt_rows, length);
    EXPECT_EQ(bed.blocks().in_use(), (length + 15) / 16);
    bed.step();
    // Full blocks once, and one more for each sequence.
    EXPECT_EQ(bed.blocks().in_use(), length / 16 + 4);
    EXPECT_EQ(bed.last_plan().copies.size(), length % 16 == 0 ? 0u : 4u);
    ASSERT_TRUE(bed.run(100));
    expect_complete(*request);
    expect_clean(bed);
  }
}

// Two sequences share the last, partial block of a pool that is full. Taking the younger one's blocks
// frees none, yet leaves that block to the older one: the same step must go on. An empty step here
// would let the step thread sleep with nobody to wake it.
TEST(PrefixSharing, TheLastHolderOfASharedBlockRunsInTheStepThatMadeItSo) {
  BedConfig config;
  config.blocks = 7;
  config.block_size = 2;
  SchedulerBed bed(config);
  ASSERT_TRUE(bed.submit({.prompt = SchedulerBed::prompt(1, 13),
                          .max_tokens = 2,
                          .sequences = 2,
                          .use_prefix_cache = false})
                  .ok());
  const BedRequest& request = *bed.requests()[0];
  for (int step = 0; step < 20 && !request.answered; ++step) {
    ASSERT_TRUE(bed.step() > 0 || request.answered) << bed.describe();
  }
  EXPECT_TRUE(request.answered);
  EXPECT_GT(bed.scheduler().counters().preemptions, 0);
  EXPECT_EQ(bed.problem(), "");
  EXPECT_EQ(bed.leak(), "");
}

}  // namespace
}  // namespace brigade::tests
