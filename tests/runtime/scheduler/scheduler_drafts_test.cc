// Draft rows in a step: what is taken, what goes back, and that nobody has to give anything up for
// them.
#include "gtest/gtest.h"
#include "runtime/scheduler/scheduler.h"
#include "tests/runtime/scheduler/scheduler_bed.h"

namespace brigade::tests {
namespace {

using runtime::KvBlocks;
using runtime::ScheduledRequest;
using runtime::ScheduledSequence;
using runtime::Scheduler;
using runtime::StepPlan;

// One sequence whose prompt has been computed and whose first token is known.
class Drafts : public testing::Test {
 protected:
  void start(int blocks, int prompt, int most_new, size_t room = 100) {
    blocks_ = std::make_unique<KvBlocks>(blocks, 4);
    scheduler_ = std::make_unique<Scheduler>(
        runtime::SchedulerConfig{.max_rows = 16, .max_logit_rows = 12}, blocks_.get());
    request_.sequences = {&sequence_};
    request_.max_positions = prompt + most_new - 1;
    request_.room = room;
    sequence_.request = &request_;
    sequence_.tokens = SchedulerBed::prompt(1, prompt);
    scheduler_->enqueue(&request_);
    std::vector<ScheduledRequest*> started;
    scheduler_->admit(absl::UnixEpoch(), &started);
    while (sequence_.remaining() > 0) {
      scheduler_->plan_step(absl::UnixEpoch(), &plan_);
      scheduler_->step_ended(&plan_, true, absl::UnixEpoch());
    }
    scheduler_->append(&sequence_, 7);
  }
  // Plans the next step with so many drafts; how many it took.
  int plan(int drafts) {
    scheduler_->plan_step(absl::UnixEpoch(), &plan_);
    EXPECT_EQ(plan_.slices.size(), 1u);
    const std::vector<int32_t> tokens(static_cast<size_t>(drafts), 7);
    scheduler_->add_drafts(&plan_, &plan_.slices[0], tokens);
    EXPECT_EQ(plan_.slices[0].count, 1 + plan_.slices[0].drafts);
    EXPECT_EQ(plan_.rows, plan_.slices[0].count);
    EXPECT_EQ(plan_.logit_rows, plan_.slices[0].count);
    EXPECT_EQ(request_.events_in_flight, static_cast<size_t>(plan_.slices[0].count));
    return plan_.slices[0].drafts;
  }
  // Ends it with the first so many accepted.
  void end(int accepted) {
    scheduler_->step_ended(&plan_, true, absl::UnixEpoch());
    EXPECT_EQ(request_.events_in_flight, 0u);
    scheduler_->confirm(&sequence_);
    for (int i = 0; i <= accepted; ++i) {
      if (i > 0) scheduler_->draft_accepted(&sequence_);
      scheduler_->append(&sequence_, 7);
    }
    scheduler_->drafts_done(&sequence_);
    EXPECT_EQ(sequence_.remaining(), 1);
    EXPECT_TRUE(blocks_->consistent());
    // Exactly the blocks of what is computed.
    EXPECT_EQ(static_cast<int>(sequence_.blocks.size()), blocks_->blocks_for(sequence_.computed));
    EXPECT_LE(sequence_.committed_blocks * 4, sequence_.computed);
  }
  std::unique_ptr<KvBlocks> blocks_;
  std::unique_ptr<Scheduler> scheduler_;
  ScheduledRequest request_;
  ScheduledSequence sequence_;
  StepPlan plan_;
};

TEST_F(Drafts, ValidKvIsWhatWasKnownAndWhatWasAccepted) {
  start(40, 6, 80);
  for (const int accepted : {0, 3, 1, 8, 0, 5}) {
    const int before = sequence_.computed;
    ASSERT_EQ(plan(8), 8);
    end(accepted);
    EXPECT_EQ(sequence_.computed, before + accepted + 1);
  }
  scheduler_->end(&sequence_);
  EXPECT_EQ(blocks_->in_use(), 0);
}

TEST_F(Drafts, NoMoreThanRowsRoomAndTheEndAllow) {
  start(40, 6, 80);
  EXPECT_EQ(plan(30), 11);  // 12 rows with logits
  end(0);
  request_.room = 4;
  EXPECT_EQ(plan(8), 3);
  end(0);
  request_.room = 100;
  request_.max_positions = static_cast<int>(sequence_.tokens.size()) + 2;
  EXPECT_EQ(plan(8), 2);
  end(2);
}

TEST_F(Drafts, TakeOnlyBlocksThatNobodyNeeds) {
  start(5, 6, 14);  // two blocks held, three free, of which one stays for the running sequence
  EXPECT_EQ(plan(11), 9);
  EXPECT_EQ(blocks_->available(), 1);
  end(0);
  EXPECT_EQ(blocks_->available(), 3);
}

TEST_F(Drafts, AFailedOrParkedStepGivesTheirBlocksBack) {
  start(40, 6, 80);
  ASSERT_EQ(plan(9), 9);
  plan_.slices[0].parked = true;
  scheduler_->step_ended(&plan_, true, absl::UnixEpoch());
  scheduler_->drafts_done(&sequence_);
  EXPECT_EQ(sequence_.blocks.size(), 2u);
  EXPECT_EQ(sequence_.computed, 6);
  scheduler_->cluster_changed();
  ASSERT_EQ(plan(9), 9);
  scheduler_->end(&sequence_);
  scheduler_->step_ended(&plan_, false, absl::UnixEpoch());
  EXPECT_EQ(blocks_->in_use(), 0);
}

}  // namespace
}  // namespace brigade::tests
