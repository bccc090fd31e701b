// A worker's rules with its coordinator: every story as events in and actions out.
#include "runtime/worker/worker_session.h"

#include <memory>
#include <random>

#include "gtest/gtest.h"

namespace brigade::runtime::worker {
namespace {

using State = WorkerSession::State;

class WorkerSessionTest : public ::testing::Test {
 protected:
  WorkerSessionTest() { make({}); }

  void make(SessionConfig config) {
    config.coordinator = "host:1";
    config.random = [this] { return random_(); };
    session_ = std::make_unique<WorkerSession>(std::move(config));
  }
  static Registered terms() {
    return {.rank = 2,
            .coordinator_id = 9,
            .coordinator_incarnation = 5,
            .data_address = "theirs",
            .heartbeat_interval = absl::Milliseconds(200),
            .lost_after = absl::Seconds(2),
            .num_ranks = 4,
            .microbatches = 2,
            .max_rows = 64};
  }
  Actions hear(const CoordinatorMessage& message) {
    return session_->on_message(session_->incarnation(), message, now_);
  }
  Actions end_stream(absl::StatusCode code, const char* why = "why") {
    return session_->on_stream_ended(session_->incarnation(), absl::Status(code, why), now_);
  }
  // Time passes to the next thing that is due.
  Actions wait() {
    now_ = session_->next_time();
    EXPECT_NE(now_, absl::InfiniteFuture());
    return session_->on_time(now_);
  }
  void serve() {
    if (session_->state() == State::kIdle) session_->start(now_);
    while (session_->state() == State::kBackingOff) wait();
    hear(terms());
    session_->on_link_opened(session_->incarnation(), "mine", now_);
    hear(LinkConnected{});
    ASSERT_EQ(session_->state(), State::kServing);
  }
  template <typename T>
  static const T* find(const Actions& actions) {
    for (const Action& action : actions) {
      if (const T* found = std::get_if<T>(&action)) return found;
    }
    return nullptr;
  }
  template <typename T>
  static const T* said(const Actions& actions) {
    for (const Action& action : actions) {
      const Say* say = std::get_if<Say>(&action);
      if (say != nullptr && std::holds_alternative<T>(say->message))
        return &std::get<T>(say->message);
    }
    return nullptr;
  }
  static void expect_exit(const Actions& actions, int code, const std::string& part) {
    const Exit* exit = find<Exit>(actions);
    ASSERT_NE(exit, nullptr);
    EXPECT_EQ(exit->code, code);
    EXPECT_NE(exit->reason.find(part), std::string::npos) << exit->reason;
    EXPECT_EQ(exit, std::get_if<Exit>(&actions.back())) << "nothing to do after the end";
  }

  std::mt19937_64 random_{7};
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::unique_ptr<WorkerSession> session_;
};

TEST_F(WorkerSessionTest, RegistersLinksAndServes) {
  Actions actions = session_->start(now_);
  ASSERT_NE(find<Dial>(actions), nullptr);
  EXPECT_EQ(find<Dial>(actions)->incarnation, session_->incarnation());
  EXPECT_NE(session_->incarnation(), 0u);
  actions = hear(terms());
  ASSERT_NE(find<OpenLink>(actions), nullptr);
  EXPECT_EQ(find<OpenLink>(actions)->registration.data_address, "theirs");
  EXPECT_EQ(find<OpenLink>(actions)->incarnation, session_->incarnation());
  actions = session_->on_link_opened(session_->incarnation(), "mine", now_);
  ASSERT_NE(said<LinkReady>(actions), nullptr);
  EXPECT_EQ(said<LinkReady>(actions)->data_address, "mine");
  EXPECT_EQ(session_->state(), State::kLinking);
  hear(LinkConnected{});
  EXPECT_EQ(session_->state(), State::kServing);
}

TEST_F(WorkerSessionTest, BeatsEachIntervalAndOnlyThen) {
  serve();
  const absl::Time begin = now_;
  for (int i = 1; i <= 20; ++i) {
    const Actions actions = wait();
    ASSERT_NE(said<WorkerHeartbeat>(actions), nullptr);
    EXPECT_EQ(said<WorkerHeartbeat>(actions)->sequence, i);
    EXPECT_EQ(now_ - begin, i * absl::Milliseconds(200));
    hear(CoordinatorHeartbeat{});
    EXPECT_TRUE(session_->on_time(now_).empty());
  }
}

TEST_F(WorkerSessionTest, OnlyTheFirstLoadOfARegistrationDropsOthers) {
  serve();
  for (int round = 0; round < 2; ++round) {
    const Actions first = hear(LoadExperts{1, {{0, {3, 4}}}});
    ASSERT_NE(find<QueueLoad>(first), nullptr);
    EXPECT_TRUE(find<QueueLoad>(first)->drop_others);
    EXPECT_EQ(find<QueueLoad>(first)->load.experts, (ExpertRanges{{0, {3, 4}}}));
    EXPECT_FALSE(find<QueueLoad>(hear(LoadExperts{2, {}}))->drop_others);
    ASSERT_NE(find<QueueRelease>(hear(ReleaseExperts{3, {{0, {4}}}})), nullptr);
    end_stream(absl::StatusCode::kUnavailable);
    serve();
  }
}

TEST_F(WorkerSessionTest, ReportsGoOnlyToTheRegistrationThatAsked) {
  serve();
  const uint64_t before = session_->incarnation();
  ASSERT_NE(said<ExpertsLoaded>(session_->on_report(before, ExpertsLoaded{.command = 4})), nullptr);
  end_stream(absl::StatusCode::kUnavailable);
  EXPECT_TRUE(session_->on_report(before, ExpertsLoaded{.command = 5}).empty());
  serve();
  EXPECT_TRUE(session_->on_report(before, ExpertsLoaded{.command = 6}).empty());
}

TEST_F(WorkerSessionTest, ALostCoordinatorIsDialledUnderANewIncarnation) {
  serve();
  const uint64_t before = session_->incarnation();
  const Actions lost = end_stream(absl::StatusCode::kUnavailable, "Connection reset");
  EXPECT_NE(find<CloseLink>(lost), nullptr);
  EXPECT_NE(find<AbandonLoads>(lost), nullptr);
  EXPECT_EQ(find<HangUp>(lost), nullptr) << "the stream is over already";
  EXPECT_EQ(find<Exit>(lost), nullptr);
  EXPECT_NE(find<Note>(lost)->text.find("Connection reset"), std::string::npos);
  const absl::Time lost_at = now_;
  const Actions again = wait();
  ASSERT_NE(find<Dial>(again), nullptr);
  EXPECT_LE(now_ - lost_at, absl::Milliseconds(100));
  EXPECT_NE(find<Dial>(again)->incarnation, before);
  // Late events of the life before.
  EXPECT_TRUE(session_->on_message(before, terms(), now_).empty());
  EXPECT_TRUE(session_->on_stream_ended(before, absl::OkStatus(), now_).empty());
  EXPECT_TRUE(session_->on_link_lost(before, absl::OkStatus(), now_).empty());
  EXPECT_TRUE(session_->on_link_opened(before, "mine", now_).empty());
  EXPECT_EQ(session_->state(), State::kRegistering);
}

TEST_F(WorkerSessionTest, ASilentCoordinatorIsLost) {
  serve();
  const absl::Time heard = now_;
  Actions actions;
  while (find<HangUp>(actions) == nullptr) actions = wait();
  EXPECT_EQ(now_ - heard, absl::Seconds(2));
  EXPECT_NE(find<CloseLink>(actions), nullptr);
  EXPECT_EQ(session_->state(), State::kBackingOff);
}

// Stopped by a signal for long and then continued: what the coordinator sent meanwhile lies unread.
TEST_F(WorkerSessionTest, WhoWasAsleepListensBeforeItAccuses) {
  serve();
  now_ += absl::Seconds(30);
  EXPECT_EQ(find<HangUp>(session_->on_time(now_)), nullptr);
  EXPECT_EQ(session_->state(), State::kServing);
  // Silence it is, all the same.
  const absl::Time woke = now_;
  while (session_->state() == State::kServing) wait();
  EXPECT_LE(now_ - woke, absl::Seconds(1));
}

TEST_F(WorkerSessionTest, DelaysGrowToTheirBoundWithJitter) {
  session_->start(now_);
  std::vector<absl::Duration> delays;
  for (int i = 0; i < 12; ++i) {
    end_stream(absl::StatusCode::kUnavailable);
    const absl::Time ended = now_;
    ASSERT_NE(find<Dial>(wait()), nullptr);
    const absl::Duration full = std::min(absl::Seconds(5), absl::Milliseconds(100) * (1 << i));
    EXPECT_GE(now_ - ended, full / 2);
    EXPECT_LE(now_ - ended, full);
    delays.push_back((now_ - ended) / 1);
  }
  EXPECT_NE(delays[10], delays[11]);
  // Serving once makes the next delay short again.
  serve();
  end_stream(absl::StatusCode::kUnavailable);
  EXPECT_LE(session_->next_time() - now_, absl::Milliseconds(100));
}

TEST_F(WorkerSessionTest, WithoutACoordinatorItEndsAfterTheTimeout) {
  make({.rejoin_timeout = absl::Seconds(60)});
  session_->start(now_);
  const absl::Time begin = now_;
  Actions actions;
  while (find<Exit>(actions) == nullptr) {
    if (session_->state() == State::kRegistering) {
      actions = end_stream(absl::StatusCode::kUnavailable, "refused by the network");
    } else {
      actions = wait();
    }
    ASSERT_LE(now_ - begin, absl::Seconds(60));
  }
  expect_exit(actions, kExitLost, "for 1m: refused by the network");
  EXPECT_EQ(now_ - begin, absl::Seconds(60));
  EXPECT_EQ(session_->next_time(), absl::InfiniteFuture());
}

TEST_F(WorkerSessionTest, TheTimeoutStartsAnewWhenItHasServed) {
  make({.rejoin_timeout = absl::Seconds(60)});
  session_->start(now_);
  end_stream(absl::StatusCode::kUnavailable);
  now_ += absl::Seconds(50);
  session_->on_time(now_);
  serve();
  now_ += absl::Seconds(3600);
  hear(CoordinatorHeartbeat{});
  EXPECT_EQ(find<Exit>(session_->on_time(now_)), nullptr);
  end_stream(absl::StatusCode::kUnavailable);
  now_ += absl::Seconds(59);
  EXPECT_EQ(find<Exit>(session_->on_time(now_)), nullptr);
}

TEST_F(WorkerSessionTest, MayEndWhenTheCoordinatorIsLostButWaitsForTheFirst) {
  make({.exit_when_lost = true});
  session_->start(now_);
  EXPECT_EQ(find<Exit>(end_stream(absl::StatusCode::kUnavailable)), nullptr);
  serve();
  const Actions lost = end_stream(absl::StatusCode::kUnavailable, "Connection reset");
  EXPECT_NE(find<CloseLink>(lost), nullptr);
  expect_exit(lost, kExitLost, "is lost: Connection reset");
}

TEST_F(WorkerSessionTest, ARefusalEndsItWithTheCoordinatorsSentence) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kFailedPrecondition, absl::StatusCode::kUnauthenticated,
        absl::StatusCode::kResourceExhausted}) {
    make({});
    session_->start(now_);
    expect_exit(end_stream(code, "another model"), kExitRefused, "refuses: another model");
  }
  for (const absl::StatusCode code :
       {absl::StatusCode::kUnavailable, absl::StatusCode::kInternal, absl::StatusCode::kCancelled,
        absl::StatusCode::kOk, absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kAborted}) {
    make({});
    session_->start(now_);
    EXPECT_EQ(find<Exit>(end_stream(code)), nullptr);
    EXPECT_EQ(session_->state(), State::kBackingOff);
  }
  // Once registered the end of the stream is a loss, whatever the code.
  make({});
  serve();
  EXPECT_EQ(find<Exit>(end_stream(absl::StatusCode::kFailedPrecondition)), nullptr);
}

TEST_F(WorkerSessionTest, NoAnswerToTheRegistrationIsNoCoordinator) {
  session_->start(now_);
  const absl::Time begin = now_;
  const Actions actions = wait();
  EXPECT_EQ(now_ - begin, absl::Seconds(30));
  EXPECT_NE(find<HangUp>(actions), nullptr);
  EXPECT_EQ(session_->state(), State::kBackingOff);
  // One that shows that it lives may take longer.
  wait();
  for (int i = 0; i < 10; ++i) {
    now_ += absl::Seconds(20);
    hear(CoordinatorHeartbeat{});
    EXPECT_TRUE(session_->on_time(now_).empty());
  }
  hear(terms());
  EXPECT_EQ(session_->state(), State::kLinking);
}

TEST_F(WorkerSessionTest, WrongTermsAndWrongOrderAreHungUpOn) {
  const auto hangs_up = [&](const CoordinatorMessage& message) {
    make({});
    session_->start(now_);
    const Actions actions = hear(message);
    return find<HangUp>(actions) != nullptr && find<OpenLink>(actions) == nullptr &&
           session_->state() == State::kBackingOff;
  };
  for (const auto& spoil : std::vector<std::function<void(Registered&)>>{
           [](Registered& t) { t.rank = 4; }, [](Registered& t) { t.rank = -1; },
           [](Registered& t) { t.num_ranks = 0; }, [](Registered& t) { t.microbatches = 0; },
           [](Registered& t) { t.max_rows = 0; }, [](Registered& t) { t.data_address = ""; },
           [](Registered& t) { t.data_address = std::string(5000, 'x'); },
           [](Registered& t) { t.heartbeat_interval = absl::ZeroDuration(); },
           [](Registered& t) { t.lost_after = absl::Milliseconds(399); }}) {
    Registered wrong = terms();
    spoil(wrong);
    EXPECT_TRUE(hangs_up(wrong));
  }
  EXPECT_TRUE(hangs_up(LoadExperts{}));
  EXPECT_TRUE(hangs_up(LinkConnected{}));
  make({});
  serve();
  EXPECT_NE(find<HangUp>(hear(terms())), nullptr) << "registered twice";
}

TEST_F(WorkerSessionTest, ALinkThatFailsOrEndsMeansRegisteringAgain) {
  session_->start(now_);
  hear(terms());
  EXPECT_NE(find<HangUp>(session_->on_link_opened(session_->incarnation(),
                                                  absl::InternalError("no memory"), now_)),
            nullptr);
  serve();
  const Actions lost =
      session_->on_link_lost(session_->incarnation(), absl::UnavailableError("reset"), now_);
  EXPECT_NE(find<HangUp>(lost), nullptr);
  EXPECT_NE(find<CloseLink>(lost), nullptr);
  EXPECT_NE(find<Dial>(wait()), nullptr);
}

TEST_F(WorkerSessionTest, LeavesWhenDismissed) {
  serve();
  const Actions leaving = session_->on_stop("SIGTERM", now_);
  ASSERT_NE(said<Leaving>(leaving), nullptr);
  EXPECT_EQ(find<Exit>(leaving), nullptr);
  EXPECT_EQ(session_->state(), State::kServing);
  EXPECT_NE(said<WorkerHeartbeat>(wait()), nullptr) << "it serves on";
  expect_exit(hear(Dismissed{"drained"}), kExitOk, "drained");
}

TEST_F(WorkerSessionTest, LeavesAfterTheGraceOrASecondSignalOrALoss) {
  make({.grace = absl::Seconds(3)});
  serve();
  session_->on_stop("SIGTERM", now_);
  const absl::Time begin = now_;
  Actions actions;
  while (find<Exit>(actions) == nullptr) {
    hear(CoordinatorHeartbeat{});
    actions = wait();
  }
  EXPECT_EQ(now_ - begin, absl::Seconds(3));
  expect_exit(actions, kExitOk, "grace");

  make({});
  serve();
  session_->on_stop("SIGTERM", now_);
  actions = session_->on_stop("SIGTERM", now_);
  EXPECT_NE(find<HangUp>(actions), nullptr);
  expect_exit(actions, kExitOk, "at once");

  make({});
  serve();
  session_->on_stop("SIGTERM", now_);
  expect_exit(end_stream(absl::StatusCode::kUnavailable), kExitOk, "left");

  make({});
  session_->start(now_);
  expect_exit(session_->on_stop("SIGTERM", now_), kExitOk, "SIGTERM");
  EXPECT_TRUE(session_->on_stop("SIGTERM", now_).empty());
}

TEST_F(WorkerSessionTest, TheSameNewsIsNotToldAgainAndAgain) {
  session_->start(now_);
  int notes = 0;
  const absl::Time begin = now_;
  while (now_ - begin < absl::Seconds(59)) {
    notes += find<Note>(end_stream(absl::StatusCode::kUnavailable, "refused")) != nullptr;
    wait();
  }
  EXPECT_LE(notes, 3);
  EXPECT_GE(notes, 2);
}

}  // namespace
}  // namespace brigade::runtime::worker
