#include "kernels/core/thread_pool.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "kernels/core/waker.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

TEST(ThreadPool, RunsEveryIndexOnceWhateverTheSizes) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int tasks : {0, 1, 2, 3, 7, 100}) {
      std::vector<std::atomic<int>> runs(tasks);
      pool.parallel_for(tasks, [&](int index, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        ++runs[index];
      });
      for (int i = 0; i < tasks; ++i) EXPECT_EQ(runs[i], 1) << "index " << i << " of " << tasks;
    }
  }
}

TEST(ThreadPool, ManyShortJobsInARowLoseNothing) {
  ThreadPool pool(3);
  const int jobs = tests::scaled(5000, 500);
  std::atomic<int64_t> sum{0};
  for (int job = 0; job < jobs; ++job) {
    pool.parallel_for(4, [&](int index, int) { sum += index; });
  }
  EXPECT_EQ(sum, int64_t{jobs} * 6);
}

// A thread number belongs to one thread at a time: scratch memory by thread number is safe.
TEST(ThreadPool, ThreadNumbersAreNotShared) {
  ThreadPool pool(3);
  std::vector<std::atomic<int>> inside(3);
  std::atomic<bool> shared{false};
  pool.parallel_for(1000, [&](int, int thread) {
    if (inside[thread].fetch_add(1) != 0) shared = true;
    inside[thread].fetch_sub(1);
  });
  EXPECT_FALSE(shared);
}

TEST(Waker, WakeBeforeTheWaitIsNotLost) {
  Waker waker;
  waker.wake();
  waker.wake();
  EXPECT_TRUE(waker.wait_until(absl::Now() + absl::Seconds(30)));
  EXPECT_FALSE(waker.wait_until(absl::Now()));  // both wakes were consumed
}

TEST(Waker, WakesASleepingThread) {
  Waker waker;
  std::thread sleeper([&] { EXPECT_TRUE(waker.wait_until(absl::Now() + absl::Seconds(30))); });
  waker.wake();
  sleeper.join();
}

TEST(Waker, TimesOut) {
  Waker waker;
  EXPECT_FALSE(waker.wait_until(absl::Now() + absl::Milliseconds(1)));
}

}  // namespace
}  // namespace brigade::kernels
