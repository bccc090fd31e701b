// When a process that ended starts again: delays, the bound, what is not worth a retry.
#include "launcher/supervisor/restart_schedule.h"

#include "gtest/gtest.h"

namespace brigade::launcher {
namespace {

constexpr ProcessEnd kKilled = {.exit_code = 0, .signal = 9};
constexpr ProcessEnd kCrashed = {.exit_code = 3};
constexpr ProcessEnd kDone = {};
constexpr ProcessEnd kRefused = {.exit_code = 2};
const absl::Time kBegin = absl::FromUnixSeconds(1'000'000);

RestartRules rules(int max_restarts = 10) {
  RestartRules rules;
  rules.first_delay = absl::Milliseconds(500);
  rules.longest_delay = absl::Seconds(4);
  rules.max_restarts = max_restarts;
  return rules;
}

TEST(RestartSchedule, DelaysDoubleUpToTheLongest) {
  RestartSchedule schedule(rules());
  absl::Time now = kBegin;
  for (const int expected_ms : {500, 1000, 2000, 4000, 4000}) {
    const auto decision = schedule.ended(kKilled, now, now + absl::Milliseconds(10));
    ASSERT_TRUE(decision.delay.has_value());
    EXPECT_EQ(*decision.delay, absl::Milliseconds(expected_ms));
    now += absl::Seconds(5);
  }
}

TEST(RestartSchedule, AProcessThatRanForLongBeginsAtTheFirstDelay) {
  RestartSchedule schedule(rules());
  EXPECT_EQ(schedule.ended(kCrashed, kBegin, kBegin).delay, absl::Milliseconds(500));
  EXPECT_EQ(schedule.ended(kCrashed, kBegin, kBegin + absl::Seconds(4)).delay, absl::Seconds(1))
      << "as long as the longest delay is not longer";
  EXPECT_EQ(schedule.ended(kCrashed, kBegin, kBegin + absl::Seconds(5)).delay,
            absl::Milliseconds(500));
}

TEST(RestartSchedule, GivesUpAtTheBoundWithinTheWindow) {
  RestartSchedule schedule(rules(3));
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(schedule.ended(kCrashed, kBegin, kBegin).restarts_in_window, i);
  }
  const auto last = schedule.ended(kCrashed, kBegin, kBegin + absl::Minutes(9));
  EXPECT_FALSE(last.delay.has_value());
  EXPECT_TRUE(last.gave_up);
  EXPECT_EQ(last.restarts_in_window, 3);
  // Outside of the window the old ones no longer count.
  EXPECT_TRUE(schedule.ended(kCrashed, kBegin, kBegin + absl::Minutes(10)).delay.has_value());
}

TEST(RestartSchedule, ResetForgets) {
  RestartSchedule schedule(rules(1));
  EXPECT_TRUE(schedule.ended(kCrashed, kBegin, kBegin).delay.has_value());
  EXPECT_TRUE(schedule.ended(kCrashed, kBegin, kBegin).gave_up);
  schedule.reset();
  EXPECT_EQ(schedule.ended(kCrashed, kBegin, kBegin).delay, absl::Milliseconds(500));
}

TEST(RestartSchedule, PoliciesAndRefusals) {
  const auto decide = [](RestartPolicy policy, const ProcessEnd& end) {
    RestartRules with_policy = rules();
    with_policy.policy = policy;
    return RestartSchedule(with_policy).ended(end, kBegin, kBegin);
  };
  EXPECT_FALSE(decide(RestartPolicy::kNever, kCrashed).delay.has_value());
  EXPECT_TRUE(decide(RestartPolicy::kNever, kCrashed).gave_up);
  EXPECT_FALSE(decide(RestartPolicy::kNever, kDone).gave_up);
  EXPECT_TRUE(decide(RestartPolicy::kOnFailure, kKilled).delay.has_value());
  EXPECT_FALSE(decide(RestartPolicy::kOnFailure, kDone).delay.has_value());
  EXPECT_FALSE(decide(RestartPolicy::kOnFailure, kDone).gave_up);
  EXPECT_TRUE(decide(RestartPolicy::kAlways, kDone).delay.has_value());
  for (const RestartPolicy policy : {RestartPolicy::kOnFailure, RestartPolicy::kAlways}) {
    EXPECT_FALSE(decide(policy, kRefused).delay.has_value()) << "bad flags stay bad";
    EXPECT_TRUE(decide(policy, kRefused).gave_up);
  }
  EXPECT_FALSE(RestartSchedule(rules(0)).ended(kCrashed, kBegin, kBegin).delay.has_value());
}

}  // namespace
}  // namespace brigade::launcher
