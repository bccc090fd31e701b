#include "expert_parallel/transport/transport_loop.h"

#include <time.h>

#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "kernels/core/waker.h"
#include "tests/expert_parallel/transport_kinds.h"

namespace brigade::tests {
namespace {

using expert_parallel::LoopClient;
using expert_parallel::PeerId;
using expert_parallel::Transport;
using expert_parallel::TransportLoop;

// Sends back what it gets, with a byte more.
class Echo : public LoopClient {
 public:
  explicit Echo(Transport& transport) : transport_(transport) {}
  void on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) override {
    text_ = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + "!";
    transport_.release(receipt);
    ++(std::this_thread::get_id() == guest ? on_guest : on_loop);
    if (text_.size() < 40) {
      EXPECT_TRUE(transport_.send(peer, {.head = std::as_bytes(std::span(text_))}, 0).ok());
    } else {
      done.wake();
    }
  }
  void on_sent(PeerId, uint64_t, const absl::Status&) override {}
  void on_peer_lost(PeerId, const absl::Status&) override { lost.wake(); }
  absl::Time on_turn() override {
    timespec cpu;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    cpu_ns = cpu.tv_sec * 1000000000ll + cpu.tv_nsec;
    ++turns;
    if (kick.exchange(false)) {
      text_ = "go";
      EXPECT_TRUE(transport_.send(peer_to_kick, {.head = std::as_bytes(std::span(text_))}, 0).ok());
      return absl::InfinitePast();
    }
    return absl::InfiniteFuture();
  }
  void on_loop_failed(const absl::Status& status) override { ADD_FAILURE() << status; }

  kernels::Waker done, lost;
  std::atomic<int64_t> cpu_ns{0}, turns{0};
  std::atomic<bool> kick{false};
  std::thread::id guest;
  std::atomic<int> on_guest{0}, on_loop{0};  // messages by the thread that took them in
  PeerId peer_to_kick = 0;

 private:
  Transport& transport_;
  std::string text_;
};

class TransportLoopTest : public ::testing::TestWithParam<TransportKind> {};
INSTANTIATE_TEST_SUITE_P(Transports, TransportLoopTest, ::testing::ValuesIn(transport_kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(TransportLoopTest, WakesForPeersAndThreadsAndSleepsOtherwise) {
  const TransportFactory factory = GetParam().make_factory();
  std::unique_ptr<Transport> a = factory({}), b = factory({});
  Echo echo_a(*a), echo_b(*b);
  const PeerId at_a = *a->open_link(), at_b = *b->open_link();
  ASSERT_TRUE(a->connect(at_a, *b->address(at_b)).ok());
  ASSERT_TRUE(b->connect(at_b, *a->address(at_a)).ok());
  echo_a.peer_to_kick = at_a;
  TransportLoop loop_a(*a, echo_a);
  auto loop_b = std::make_unique<TransportLoop>(*b, echo_b);
  loop_a.start();
  loop_b->start();
  echo_a.kick = true;
  loop_a.wake();
  // "go" grows to 40 bytes on whichever side is next: 38 trips, so it ends at a.
  EXPECT_TRUE(echo_a.done.wait_until(absl::Now() + absl::Seconds(20)));
  // Idle: measured on the loop's own CPU clock, so that other load does not matter.
  const int64_t cpu_before = echo_a.cpu_ns, turns_before = echo_a.turns;
  absl::SleepFor(absl::Milliseconds(300));
  loop_a.wake();
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (echo_a.turns == turns_before && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(1));
  EXPECT_LT(echo_a.turns - turns_before, 30);
  EXPECT_LT(echo_a.cpu_ns - cpu_before, 30 * 1000000) << "an idle loop used a tenth of a core";
  loop_b->stop();
  loop_b->stop();
  loop_b.reset();
  b.reset();
  if (!GetParam().sees_end_within_process) return loop_a.stop();
  EXPECT_TRUE(echo_a.lost.wait_until(absl::Now() + absl::Seconds(20)));
  loop_a.stop();
}

// A transport that never lets anybody sleep, as one whose peer stopped while it wrote.
class Restless final : public Transport {
 public:
  expert_parallel::TransportCaps caps() const override { return {}; }
  void set_listener(expert_parallel::TransportListener*) override {}
  absl::StatusOr<PeerId> open_link() override { return PeerId{1}; }
  absl::StatusOr<std::string> address(PeerId) const override { return std::string(); }
  absl::Status connect(PeerId, const std::string&) override { return absl::OkStatus(); }
  absl::Status send(PeerId, const expert_parallel::Message&, uint64_t) override {
    return absl::UnavailableError("no peer");
  }
  void release(uint64_t) override {}
  void begin_group() override {}
  void end_group() override {}
  void close_peer(PeerId) override {}
  bool progress() override { return false; }
  int event_fd() const override { return event_.fd(); }
  absl::StatusOr<bool> arm() override { return false; }
  absl::Status shut_down(absl::Time) override { return absl::OkStatus(); }
  uint64_t strangers_refused() const override { return 0; }

 private:
  expert_parallel::EventFd event_;
};

TEST(TransportLoop, AGuestThatMayNotSleepLeavesRoomForCallsAndKeepsItsDeadline) {
  Restless transport;
  Echo client(transport);
  TransportLoop loop(transport, client);
  loop.start();
  kernels::Waker waker;
  std::atomic<bool> called{false};
  std::thread guest([&] {
    EXPECT_TRUE(loop.guest_sleep(waker, absl::Now() + absl::Seconds(60)));
    EXPECT_TRUE(called);
    EXPECT_FALSE(loop.guest_sleep(waker, absl::Now() + absl::Milliseconds(20)));
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(loop.call([&] { called = true; }, absl::Now() + absl::Seconds(10)).ok());
  }
  waker.wake();
  guest.join();
  loop.stop();
}

// The guest sends and takes in by itself while it is there; the loop's thread does when it is away,
// and runs the control plane's calls all the time.
TEST_P(TransportLoopTest, AGuestTakesTurnsWhileItIsThere) {
  const TransportFactory factory = GetParam().make_factory();
  std::unique_ptr<Transport> a = factory({}), b = factory({});
  Echo echo_a(*a), echo_b(*b);
  const PeerId at_a = *a->open_link(), at_b = *b->open_link();
  ASSERT_TRUE(a->connect(at_a, *b->address(at_b)).ok());
  ASSERT_TRUE(b->connect(at_b, *a->address(at_a)).ok());
  echo_a.peer_to_kick = at_a;
  echo_a.guest = std::this_thread::get_id();
  TransportLoop loop_a(*a, echo_a), loop_b(*b, echo_b);
  const auto soon = [] { return absl::Now() + absl::Seconds(20); };
  EXPECT_FALSE(loop_a.guest_sleep(echo_a.done, absl::Now())) << "before the loop runs";
  loop_a.start();
  loop_b.start();
  // Links are made (on whichever thread) before messages are counted.
  echo_a.kick = true;
  loop_a.guest_turn();
  ASSERT_TRUE(loop_a.guest_sleep(echo_a.done, soon()));

  int by_guest = 0, by_loop = 0;
  for (int trip = 0; trip < 5; ++trip) {
    echo_a.on_guest = echo_a.on_loop = 0;
    loop_a.guest_sleep(echo_a.done, absl::Now());
    echo_a.kick = true;
    loop_a.guest_turn();
    ASSERT_TRUE(loop_a.guest_sleep(echo_a.done, soon()));
    EXPECT_EQ(echo_a.on_guest + echo_a.on_loop, 19);
    by_guest += echo_a.on_guest;
    by_loop += echo_a.on_loop;
  }
  // The loop's thread looks after the guest every few milliseconds, and takes in what it finds
  // then.
  EXPECT_GT(by_guest, by_loop);
  // Away: it waits elsewhere, and nobody but the loop's thread can bring it the answer.
  echo_a.on_guest = echo_a.on_loop = 0;
  echo_a.kick = true;
  loop_a.guest_turn();
  ASSERT_TRUE(echo_a.done.wait_until(soon()));
  EXPECT_EQ(echo_a.on_guest + echo_a.on_loop, 19);
  // Asleep: the control plane is served, and a wake by somebody else ends the sleep.
  std::thread control([&] {
    bool ran = false;
    EXPECT_TRUE(loop_a.call([&] { ran = true; }, soon()).ok());
    EXPECT_TRUE(ran);
    echo_a.done.wake();
  });
  EXPECT_TRUE(loop_a.guest_sleep(echo_a.done, soon()));
  control.join();
  // Idle: both threads sleep.
  const int64_t turns_before = echo_a.turns;
  EXPECT_FALSE(loop_a.guest_sleep(echo_a.done, absl::Now() + absl::Milliseconds(300)));
  EXPECT_LT(echo_a.turns - turns_before, 30);
  loop_a.stop();
  loop_b.stop();
  EXPECT_FALSE(loop_a.guest_sleep(echo_a.done, absl::Now())) << "after its end";
}

}  // namespace
}  // namespace brigade::tests
