// An orderly end that takes too long, or that somebody does not want to wait for.
#include "runtime/app/teardown_guard.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace brigade::runtime {
namespace {

// What holds up the end: longer than a death test may take.
void hang() { absl::SleepFor(absl::Minutes(2)); }

TEST(TeardownGuardDeathTest, EndsWhatTakesTooLongOrIsAskedAgain) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ShutdownSignals signals;
        TeardownGuard guard(signals, absl::Milliseconds(20));
        hang();
      },
      testing::ExitedWithCode(1), "");
  EXPECT_EXIT(
      {
        ShutdownSignals signals;
        TeardownGuard guard(signals, absl::Minutes(1));
        kill(getpid(), SIGTERM);
        hang();
      },
      testing::ExitedWithCode(0), "");
}

TEST(TeardownGuardDeathTest, LetsAnEndInTimeBe) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ShutdownSignals signals;
        { TeardownGuard guard(signals); }
        std::exit(7);
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace brigade::runtime
