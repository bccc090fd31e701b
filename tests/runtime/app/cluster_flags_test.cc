#include "runtime/app/cluster_flags.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/app/logit_rows.h"

namespace brigade::runtime {
namespace {

using ::testing::HasSubstr;

TEST(ClusterFlags, MicrobatchesFollowTheWorkers) {
  ClusterConfig alone, with_workers{.workers = 2}, told{.workers = 2, .microbatches = 3};
  for (ClusterConfig* config : {&alone, &with_workers, &told}) EXPECT_TRUE(check(config).ok());
  EXPECT_EQ(alone.microbatches, 1);
  EXPECT_EQ(with_workers.microbatches, 2);
  EXPECT_EQ(told.microbatches, 3);
}

TEST(ClusterFlags, NamesTheFlagThatIsWrong) {
  const std::pair<ClusterConfig, const char*> cases[] = {
      {{.workers = -1}, "--workers is -1"},
      {{.workers = 100000}, "--workers is 100000"},
      {{.microbatches = 9}, "--microbatches is 9"},
      {{.wire_dtype = "f16"}, "--wire-dtype f16: known are f32, bf16"},
      {{.heartbeat = absl::ZeroDuration()}, "--heartbeat"},
      {{.heartbeat = absl::Seconds(2), .lost_after = absl::Seconds(3)}, "--lost-after 3s"},
      {{.reply_deadline = absl::Milliseconds(1)}, "--reply-deadline"},
  };
  for (const auto& [config, sentence] : cases) {
    ClusterConfig copy = config;
    const absl::Status status = check(&copy);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << sentence;
    EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
  }
}

// A full batch keeps rows for drafts; a large vocabulary gets what its memory allows, a sequence
// always its own.
TEST(LogitRows, LeaveRoomForDraftsOfAFullBatch) {
  EXPECT_EQ(logit_rows(16, 8, 256, 32000), 144);
  EXPECT_EQ(logit_rows(64, 8, 256, 32000), 256);
  EXPECT_EQ(logit_rows(64, 8, 256, 151936), 220);
  EXPECT_EQ(logit_rows(64, 8, 48, 32000), 64);
  EXPECT_EQ(logit_rows(64, 0, 256, 32000), 64);
  EXPECT_EQ(logit_rows(512, 8, 256, 151936), 512);
}

}  // namespace
}  // namespace brigade::runtime
