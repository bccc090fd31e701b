// Thousands of short random histories of arrivals, cancels, deadlines and slow readers over tiny
// pools. In each: every request gets its answer within a bounded number of steps, no token is
// changed or sent twice, no KV slot is read that was not written for it, and in the end every block
// is back.
#include <algorithm>
#include <random>

#include "gtest/gtest.h"
#include "tests/runtime/scheduler/scheduler_bed.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

class History {
 public:
  explicit History(uint64_t seed) : random_(seed), config_(random_config()), bed_(config_) {
    if (pick(3) == 0) parks_left_ = most_parks_ = pick(60);
    bed_.parks = [this](const runtime::StepSlice&) {
      if (parks_left_ == 0 || pick(4) != 0) return false;
      --parks_left_;
      return true;
    };
  }

  void run() {
    const int events = 20 + pick(60);
    for (int i = 0; i < events; ++i) one_event();
    for (const auto& request : bed_.requests()) {
      if (pick(4) != 0) request->reads = true;  // the others run into the reader's time limit
    }
    settle();
    check();
  }

  int64_t preemptions() { return bed_.scheduler().counters().preemptions; }
  int64_t hits() { return bed_.scheduler().counters().prefix_hit_tokens; }
  int64_t pauses() { return bed_.scheduler().counters().paused_for_reader; }
  int64_t parkings() { return bed_.scheduler().counters().parkings; }
  int64_t mixed() { return bed_.scheduler().counters().mixed_steps; }
  int completed() const {
    return static_cast<int>(std::count_if(bed_.requests().begin(), bed_.requests().end(),
                                          [](const auto& r) { return r->end.ok(); }));
  }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<uint64_t>(below)); }

  BedConfig random_config() {
    BedConfig config;
    config.block_size = 1 + pick(5);
    config.blocks = 4 + pick(20);
    config.stream_capacity = static_cast<size_t>(4 + pick(5));
    config.max_waiting_requests = 1 + pick(8);
    config.scheduler.max_running_sequences = 4 + pick(6);
    config.scheduler.microbatches = 1 + pick(3);
    config.scheduler.max_rows = 1 + pick(12);
    config.scheduler.max_step_sequences = 1 + pick(8);
    config.scheduler.max_logit_rows = 1 + pick(8);
    config.scheduler.prefill_chunk = 1 + pick(8);
    config.scheduler.prefill_reserve = 1 + pick(8);
    config.scheduler.max_preemptions = 1 + pick(4);
    config.scheduler.queue_timeout = absl::Seconds(1 + pick(100));
    config.scheduler.reader_timeout = absl::Seconds(30);
    return config;
  }

  void one_event() {
    const int kind = pick(10);
    if (kind < 4) {
      submit();
    } else if (kind == 4 && !bed_.requests().empty()) {
      bed_.cancel(any_request());
    } else if (kind == 5 && !bed_.requests().empty()) {
      any_request()->reads = pick(2) == 0;
    } else if (kind == 6) {
      bed_.advance_clock(absl::Seconds(pick(6)));
    } else if (kind == 7) {
      bed_.scheduler().cluster_changed();
    }
    bed_.step();
  }

  BedRequest* any_request() {
    return bed_.requests()[static_cast<size_t>(pick(static_cast<int>(bed_.requests().size())))]
        .get();
  }

  void submit() {
    BedCall call;
    call.prompt = SchedulerBed::prompt(pick(3), 1 + pick(24));
    call.max_tokens = 1 + pick(20);
    call.sequences = pick(3) == 0 ? 1 + pick(4) : 1;
    if (pick(4) == 0) call.deadline = absl::Seconds(1 + pick(30));
    if (pick(5) == 0) call.salt = "salt";
    call.use_prefix_cache = pick(6) != 0;
    const auto request = bed_.submit(call);
    if (request.ok() && pick(8) == 0) (*request)->tainted = true;
  }

  // Nothing arrives any more. Every step does work or the clock moves to the next expiry.
  void settle() {
    int64_t tokens = 0;
    for (const auto& request : bed_.requests()) {
      tokens += static_cast<int64_t>(request->sequences.size()) *
                (static_cast<int64_t>(request->call.prompt.size()) + request->call.max_tokens);
    }
    // Each token is computed at most once for each time its sequence runs; parking costs a step and
    // a wait.
    const int64_t bound = 10 + tokens * (config_.scheduler.max_preemptions + 2) + 2 * most_parks_;
    for (int64_t step = 0; step < bound; ++step) {
      if (all_answered()) {
        for (int i = 0; i < 4; ++i) bed_.step();  // steps in flight end
        return;
      }
      if (bed_.step() > 0 || all_answered()) continue;
      const absl::Time next =
          std::min(bed_.scheduler().next_expiry(), bed_.scheduler().next_retry(bed_.now()));
      ASSERT_NE(next, absl::InfiniteFuture()) << "nothing runs and nothing will expire\n"
                                              << bed_.describe();
      bed_.advance_clock(std::max(absl::ZeroDuration(), next - bed_.now()));
    }
    FAIL() << "requests without an answer after " << bound << " steps\n" << bed_.describe();
  }

  bool all_answered() const {
    return std::all_of(bed_.requests().begin(), bed_.requests().end(),
                       [](const auto& request) { return request->answered; });
  }

  void check() {
    EXPECT_EQ(bed_.problem(), "");
    EXPECT_EQ(bed_.leak(), "");
    for (const auto& request : bed_.requests()) {
      ASSERT_TRUE(request->answered);
      for (size_t i = 0; i < request->sent.size(); ++i) check_tokens(*request, i);
      if (pauses() > 0) continue;  // who waits for its reader may lose its blocks each time
      for (const auto& sequence : request->owned) {
        EXPECT_LE(sequence->preemptions, config_.scheduler.max_preemptions);
      }
    }
  }

  void check_tokens(const BedRequest& request, size_t sample) {
    std::vector<int32_t> tokens = request.call.prompt;
    const std::vector<int32_t>& sent = request.sent[sample];
    if (request.end.ok()) {
      EXPECT_EQ(sent.size(), static_cast<size_t>(request.call.max_tokens));
    }
    for (size_t i = 0; i < sent.size(); ++i) {
      const int32_t first = i == 0 ? static_cast<int32_t>(sample) : 0;
      ASSERT_EQ(sent[i], SchedulerBed::next_token(tokens) + first) << "token " << i;
      tokens.push_back(sent[i]);
    }
  }

  std::mt19937_64 random_;
  int parks_left_ = 0, most_parks_ = 0;
  const BedConfig config_;
  SchedulerBed bed_;
};

TEST(SchedulerModelCheck, EveryRequestIsAnsweredAndNothingLeaks) {
  const uint64_t first = test_seed(1);
  const int histories = scaled(is_long_run() ? 60000 : 4000, 200);
  int64_t preemptions = 0, hits = 0, pauses = 0, mixed = 0, parkings = 0, completed = 0;
  for (int i = 0; i < histories; ++i) {
    // BRIGADE_TEST_SEED of a failure replays it as the first history.
    const uint64_t seed = first + static_cast<uint64_t>(i);
    SCOPED_TRACE(replay_note("scheduler_model_check_test", seed));
    History history(seed);
    history.run();
    if (HasFatalFailure() || HasFailure()) return;
    preemptions += history.preemptions();
    hits += history.hits();
    pauses += history.pauses();
    mixed += history.mixed();
    parkings += history.parkings();
    completed += history.completed();
  }
  std::printf(
      "%d histories from seed %llu: %lld requests completed, %lld preemptions, %lld prefix hit "
      "tokens, %lld pauses, %lld mixed steps, %lld parkings\n",
      histories, static_cast<unsigned long long>(first), static_cast<long long>(completed),
      static_cast<long long>(preemptions), static_cast<long long>(hits),
      static_cast<long long>(pauses), static_cast<long long>(mixed),
      static_cast<long long>(parkings));
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(hits, 0);
  EXPECT_GT(pauses, 0);
  EXPECT_GT(mixed, 0);
  EXPECT_GT(parkings, 0);
  EXPECT_GT(completed, histories);
}

}  // namespace
}  // namespace brigade::tests
