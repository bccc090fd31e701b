// Rules of time, with a clock of the test's own: what silence means, and what it does not.
#include "runtime/cluster/cluster_control.h"

#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
#include "kernels/core/event_state.h"

namespace brigade::runtime {
namespace {

using namespace expert_parallel;

constexpr ExpertGeometry kGeometry = {
    .moe_layers = 1, .experts = 2, .top_k = 1, .hidden = 64, .ffn = 32};

// Writes down what the coordinator says.
struct Recorder final : ControlSession {
  void send(CoordinatorSays message) override {
    beats += std::holds_alternative<CoordinatorBeat>(message);
    loads += std::holds_alternative<LoadOrder>(message);
  }
  void handled() override {}
  void end(const absl::Status& status) override { ended = status; }
  int beats = 0, loads = 0;
  std::optional<absl::Status> ended;
};

struct NoHome final : LocalExpertsHome {
  void load(std::vector<ExpertKey> keys) override { wanted = keys.size(); }
  void release(std::vector<ExpertKey>) override {}
  size_t resident_bytes() const override { return 0; }
  size_t wanted = 0;
};

class ClusterControlTest : public ::testing::Test {
 protected:
  ClusterControlTest()
      : hub_(make_loopback_hub()),
        links_(make_loopback_transport(hub_),
               {.session = {.coordinator_id = 1}, .incarnation = 1, .num_ranks = 2}, nullptr) {
    settings_.geometry = kGeometry;
    settings_.expected_workers = 1;
    settings_.max_ranks = 2;
    settings_.heartbeat = absl::Milliseconds(200);
    settings_.lost_after = absl::Seconds(2);
    settings_.join_deadline = absl::Minutes(5);
    control_ = std::make_unique<ClusterControl>(settings_, links_, board_, home_, now_);
    links_.start();
    control_->opened(1, worker_, now_);
    control_->said(1, Registration{.worker_id = "w", .incarnation = 7}, now_);
    // Its end of the link; nobody sends there.
    auto far = make_loopback_transport(hub_);
    far_ = std::move(far);
    control_->said(1, LinkOffer{*far_->address(*far_->open_link())}, now_);
  }
  ~ClusterControlTest() override { links_.stop(); }

  // Time passes in turns as the host's thread takes them.
  void pass(absl::Duration duration, bool worker_beats) {
    for (const absl::Time end = now_ + duration; now_ < end;) {
      now_ = std::min(end, now_ + settings_.heartbeat);
      if (worker_beats) control_->said(1, WorkerBeat{}, now_);
      control_->tick(now_);
    }
  }

  std::shared_ptr<LoopbackHub> hub_;
  WorkerLinks links_;
  ViewBoard board_;
  NoHome home_;
  ClusterSettings settings_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::shared_ptr<Recorder> worker_ = std::make_shared<Recorder>();
  std::unique_ptr<Transport> far_;
  std::unique_ptr<ClusterControl> control_;
};

TEST_F(ClusterControlTest, ASilentWorkerIsLostAndItsExpertsGoToTheCoordinator) {
  control_->tick(now_);
  EXPECT_EQ(worker_->loads, 1);
  pass(absl::Seconds(10), /*worker_beats=*/true);
  EXPECT_FALSE(worker_->ended) << *worker_->ended;
  EXPECT_EQ(worker_->beats, 51);
  pass(absl::Seconds(2), /*worker_beats=*/false);
  EXPECT_FALSE(worker_->ended) << *worker_->ended;
  pass(absl::Milliseconds(200), false);
  ASSERT_TRUE(worker_->ended);
  EXPECT_EQ(worker_->ended->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(home_.wanted, 2u);
}

// A coordinator that was stopped, or had no processor, heard nobody: it must not blame the workers.
TEST_F(ClusterControlTest, ACoordinatorThatSleptBlamesNobody) {
  pass(absl::Seconds(1), true);
  now_ += absl::Minutes(1);
  control_->tick(now_);
  EXPECT_FALSE(worker_->ended) << *worker_->ended;
  pass(absl::Seconds(2), false);  // a whole limit from here on
  EXPECT_FALSE(worker_->ended) << *worker_->ended;
  pass(absl::Milliseconds(200), false);
  EXPECT_TRUE(worker_->ended);
}

TEST_F(ClusterControlTest, AStreamWithoutRegistrationOrLinkEnds) {
  auto idle = std::make_shared<Recorder>();
  auto unlinked = std::make_shared<Recorder>();
  control_->opened(2, idle, now_);
  control_->opened(3, unlinked, now_);
  control_->said(3, Registration{.worker_id = "x", .incarnation = 7}, now_);
  for (int i = 0; i < 51; ++i) {
    control_->said(3, WorkerBeat{}, now_);
    pass(absl::Milliseconds(200), true);
  }
  ASSERT_TRUE(idle->ended);
  EXPECT_EQ(idle->ended->code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(unlinked->ended);
  EXPECT_EQ(unlinked->ended->code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(worker_->ended) << *worker_->ended;
}

// A point in a device's work that passes when told to.
struct ToldPoint final : kernels::Event::State {
  bool ready() override { return passed; }
  absl::Status wait_until(absl::Time) override { return absl::OkStatus(); }
  bool passed = false;
};

// Memory of an expert is written again once a view without it is acknowledged: not while the device
// still works on a layer of an older view, whether or not the exchange is in its next layer already.
TEST(ViewBoard, AcknowledgesOnlyWhatTheDeviceHasLeftBehind) {
  ViewBoard board;
  ViewBoard::Seat seat;
  board.add(&seat);
  const uint64_t first = board.publish(std::make_shared<ClusterView>());
  const uint64_t second = board.publish(std::make_shared<ClusterView>());
  const auto point = std::make_shared<ToldPoint>();
  seat.last_use = kernels::Event(point);
  EXPECT_FALSE(board.acknowledged(second)) << "idle, but the last layer's work goes on";
  seat.active = true;
  seat.seen = first;
  EXPECT_FALSE(board.acknowledged(second)) << "a layer under the older view";
  seat.seen = second;
  EXPECT_FALSE(board.acknowledged(second)) << "a layer under this view; the one before it goes on";
  point->passed = true;
  EXPECT_TRUE(board.acknowledged(second));
  seat.seen = first;
  EXPECT_FALSE(board.acknowledged(second));
  seat.active = false;
  EXPECT_TRUE(board.acknowledged(second));
  board.remove(&seat);
}

}  // namespace
}  // namespace brigade::runtime
