// A worker's side of the data plane, asked by hand: it answers its coordinator and nobody else.
#include "expert_parallel/experts/expert_server.h"

#include <chrono>
#include <cmath>
#include <future>
#include <mutex>
#include <utility>

#include "absl/time/clock.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
#include "kernels/core/device_cpu_async.h"
#include "tests/support/transport_node.h"

namespace brigade::tests {
namespace {

using namespace expert_parallel;

constexpr FrameLimits kLimits = {.hidden = 16, .experts = 4, .moe_layers = 2, .max_slots = 40};
const Session kSession = {.coordinator_id = 5, .secret = {1, 2, 3}};
constexpr Party kCoordinatorParty = {-1, 70}, kWorkerParty = {3, 900};

class ExpertServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = make_device();
    shard_ = *ExpertShard::create(
        *device_, {.moe_layers = 2, .experts = 4, .top_k = 2, .hidden = 16, .ffn = 8});
    auto upload = *kernels::StagedUpload::create(*device_);
    const std::vector<float> matrix(16 * 8, 0.125f);
    for (const int expert : {0, 2}) {
      ASSERT_TRUE(
          shard_->load(*upload, 1, expert, {matrix.data(), matrix.data(), matrix.data()}).ok());
    }
    server_ = *ExpertServer::create(
        make_loopback_transport(hub_), *device_, *shard_,
        {.limits = kLimits, .batch_timeout = batch_timeout_, .on_device_failed = on_device_failed_},
        nullptr);
    server_->start();
    link(kWorkerParty);
  }
  virtual std::unique_ptr<kernels::Device> make_device() {
    return *kernels::Device::create(kernels::DeviceKind::kCpu, 1);
  }
  void link(const Party& worker) {
    const absl::Time soon = absl::Now() + absl::Seconds(10);
    link_ = *node_.transport().open_link();
    const std::string there = *server_->open(kSession, kCoordinatorParty, worker, soon);
    ASSERT_TRUE(node_.transport().connect(link_, there).ok());
    ASSERT_TRUE(
        server_->connect(kSession.coordinator_id, *node_.transport().address(link_), soon).ok());
  }
  FrameHeader header() const {
    return {.hidden = 16,
            .session = kSession,
            .receiver = kWorkerParty,
            .sender = kCoordinatorParty,
            .placement_version = 3,
            .step = 11,
            .layer = 1,
            .row_count = 2,
            .entry_count = 3};
  }
  // Row 0 to experts 0 and 1, row 1 to expert 2; expert 1 is not there.
  std::string frame(const FrameHeader& header) {
    AlignedBlock block(1, kMaxFrameBytes);
    const FrameEntry entries[] = {{0, 0, 8}, {0, 1, 9}, {1, 2, 31}};
    for (uint32_t i = 0; i < 3; ++i) put_entry(frame_index(block.at(0)), i, entries[i]);
    float* rows =
        reinterpret_cast<float*>(frame_rows(block.at(0), header.kind, header.entry_count));
    for (int i = 0; i < 2 * 16; ++i) rows[i] = i < 16 ? 1.0f : -1.0f;
    const size_t bytes = seal_frame(header, block.at(0));
    return std::string(reinterpret_cast<const char*>(block.at(0)), bytes);
  }
  void send(const std::string& bytes) {
    ASSERT_TRUE(node_.send(link_, bytes, next_cookie_++).ok());
    ASSERT_TRUE(drive({&node_}, [&] { return node_.sent.size() == next_cookie_; }));
  }
  bool refused(Refusal reason, uint64_t count) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (server_->refusals().of(reason) < count && absl::Now() < deadline)
      drive_for({&node_}, absl::Milliseconds(1));
    return server_->refusals().of(reason) == count;
  }

  absl::Duration batch_timeout_ = absl::Seconds(30);
  DeviceFailed on_device_failed_;
  std::shared_ptr<LoopbackHub> hub_ = make_loopback_hub();
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<ExpertShard> shard_;
  TransportNode node_{make_loopback_transport(hub_)};
  std::unique_ptr<ExpertServer> server_;
  PeerId link_ = 0;
  uint64_t next_cookie_ = 0;
};

TEST_F(ExpertServerTest, AnswersWhatItHoldsAndDeclinesTheRest) {
  node_.release_at_once = false;
  send(frame(header()));
  ASSERT_TRUE(drive({&node_}, [&] { return node_.received.size() == 2; }));
  FrameView answer, decline;
  ASSERT_EQ(parse_frame(node_.received[0].in_place, kLimits, &answer), Refusal::kNone);
  ASSERT_EQ(parse_frame(node_.received[1].in_place, kLimits, &decline), Refusal::kNone);
  EXPECT_EQ(check_parties(answer.header, kSession, kCoordinatorParty, kWorkerParty),
            Refusal::kNone);
  EXPECT_EQ(answer.header.kind, FrameKind::kAnswer);
  EXPECT_EQ(answer.header.step, 11u);
  EXPECT_EQ(answer.header.layer, 1u);
  ASSERT_EQ(answer.header.entry_count, 2u);
  EXPECT_EQ(answer.slot(0), 8u);
  EXPECT_EQ(answer.slot(1), 31u);
  EXPECT_EQ(decline.header.kind, FrameKind::kDecline);
  ASSERT_EQ(decline.header.entry_count, 1u);
  EXPECT_EQ(decline.slot(0), 9u);
  // gate = up = 16 * 0.125 * x = +-2; out = 8 * 0.125 * silu(gate) * up.
  const float* rows = reinterpret_cast<const float*>(answer.rows);
  EXPECT_NEAR(rows[0], 2 / (1 + std::exp(-2.0)) * 2, 1e-5);
  EXPECT_NEAR(rows[16], -2 / (1 + std::exp(2.0)) * -2, 1e-5);
  EXPECT_EQ(server_->counters().rows, 2u);
  EXPECT_EQ(server_->counters().terms, 2u);
  EXPECT_EQ(server_->counters().declined_terms, 1u);
  node_.release_all();
}

TEST_F(ExpertServerTest, RefusesByReasonAndStaysWell) {
  FrameHeader other = header();
  other.session.secret[0] ^= 1;
  send(frame(other));
  EXPECT_TRUE(refused(Refusal::kStranger, 1));
  other = header();
  other.receiver.incarnation = 899;
  send(frame(other));
  EXPECT_TRUE(refused(Refusal::kStaleIncarnation, 1));
  other = header();
  other.receiver.slot = 2;
  send(frame(other));
  EXPECT_TRUE(refused(Refusal::kWrongSlot, 1));
  std::string damaged = frame(header());
  damaged[damaged.size() - 1] ^= 1;
  send(damaged);
  EXPECT_TRUE(refused(Refusal::kDamaged, 1));
  send("");
  send(frame(header()).substr(0, 200));
  EXPECT_TRUE(refused(Refusal::kMalformed, 2));
  EXPECT_TRUE(node_.received.empty()) << "an answer to somebody who must not get one";
  send(frame(header()));
  EXPECT_TRUE(drive({&node_}, [&] { return node_.received.size() == 2; }));
  EXPECT_EQ(server_->refusals().total(), 6u);
}

TEST_F(ExpertServerTest, ANewLinkOfTheSameCoordinatorEndsTheOldOne) {
  const absl::Time soon = absl::Now() + absl::Seconds(10);
  ASSERT_TRUE(server_->open(kSession, kCoordinatorParty, {3, 901}, soon).ok());
  EXPECT_TRUE(drive({&node_}, [&] { return node_.lost.count(link_) == 1; }));
  EXPECT_TRUE(absl::IsNotFound(server_->connect(6, "loopback:1", soon)));
  EXPECT_TRUE(server_->close(kSession.coordinator_id, soon).ok());
  server_->stop();
  server_->stop();
}

// The test device, of which the stream made last can be held.
class HeldDevice : public kernels::Device {
 public:
  kernels::DeviceKind kind() const override { return inner_->kind(); }
  std::string name() const override { return inner_->name(); }
  int num_threads() const override { return 1; }
  absl::StatusOr<void*> allocate(size_t bytes) override { return inner_->allocate(bytes); }
  void free(void* data, size_t bytes) override { inner_->free(data, bytes); }
  size_t bytes_in_use() const override { return inner_->bytes_in_use(); }
  absl::StatusOr<std::unique_ptr<kernels::Stream>> create_stream() override {
    auto stream = inner_->create_stream();
    last_ = static_cast<kernels::CpuAsyncStream*>(stream->get());
    return stream;
  }
  void fail() {
    ASSERT_TRUE(
        last_->enqueue([](kernels::ThreadPool&) { return absl::InternalError("a planted fault"); })
            .ok());
  }
  void hold(std::shared_future<void> until) {
    ASSERT_TRUE(last_
                    ->enqueue([until](kernels::ThreadPool&) {
                      until.wait_for(std::chrono::seconds(60));
                      return absl::OkStatus();
                    })
                    .ok());
  }

 private:
  std::unique_ptr<kernels::Device> inner_ =
      *kernels::Device::create(kernels::DeviceKind::kCpuAsync, 1);
  kernels::CpuAsyncStream* last_ = nullptr;
};

// The device is in the middle of a batch until let_go().
class BusyExpertServerTest : public ExpertServerTest {
 protected:
  void TearDown() override { let_go(); }
  std::unique_ptr<kernels::Device> make_device() override { return std::make_unique<HeldDevice>(); }
  void send_and_hold() {
    static_cast<HeldDevice&>(*device_).hold(gate_.get_future().share());
    held_ = true;
    send(frame(header()));
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (server_->counters().frames == 0 && absl::Now() < deadline)
      absl::SleepFor(absl::Milliseconds(1));
    ASSERT_EQ(server_->counters().frames, 1u);
  }
  void let_go() {
    if (std::exchange(held_, false)) gate_.set_value();
  }
  std::promise<void> gate_;
  bool held_ = false;
};

TEST_F(BusyExpertServerTest, ServesItsLinksWhileABatchRuns) {
  send_and_hold();
  send("no frame");
  EXPECT_TRUE(refused(Refusal::kMalformed, 1)) << "the server waits for its device";
  EXPECT_TRUE(node_.received.empty());
  let_go();
  EXPECT_TRUE(drive({&node_}, [&] { return node_.received.size() == 2; }));
}

TEST_F(BusyExpertServerTest, ALinkThatEndsUnderABatchGetsNoAnswer) {
  send_and_hold();
  link({3, 901});
  let_go();
  FrameHeader again = header();
  again.receiver.incarnation = 901;
  send(frame(again));
  ASSERT_TRUE(drive({&node_}, [&] { return node_.received.size() == 2; }));
  for (const TransportNode::Received& received : node_.received) EXPECT_EQ(received.peer, link_);
  EXPECT_EQ(server_->counters().frames, 2u);
}

TEST_F(BusyExpertServerTest, ExpertsChangeBetweenBatchesOnly) {
  send_and_hold();
  bool changed = false;
  const auto change = [&](absl::Duration patience) {
    return server_->call([&] { changed = true; }, absl::Now() + patience);
  };
  EXPECT_TRUE(absl::IsDeadlineExceeded(change(absl::Milliseconds(20))));
  EXPECT_FALSE(changed);
  let_go();
  EXPECT_TRUE(change(absl::Seconds(20)).ok());
  EXPECT_TRUE(changed);
  EXPECT_TRUE(drive({&node_}, [&] { return node_.received.size() == 2; }));
}

class BrokenExpertServerTest : public BusyExpertServerTest {
 protected:
  BrokenExpertServerTest() {
    on_device_failed_ = [this](const absl::Status& why) {
      std::lock_guard<std::mutex> lock(mutex_);
      failures_.push_back(why);
    };
  }
  std::mutex mutex_;
  std::vector<absl::Status> failures_;  // guarded by mutex_
};

TEST_F(BrokenExpertServerTest, ADeviceThatFailsIsTold) {
  static_cast<HeldDevice&>(*device_).fail();
  for (size_t asked = 1; asked <= 2; ++asked) {
    send(frame(header()));
    ASSERT_TRUE(drive({&node_}, [&] { return node_.received.size() == asked; })) << "no decline";
  }
  EXPECT_EQ(server_->counters().declined_terms, 6u);
  std::lock_guard<std::mutex> lock(mutex_);
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_EQ(failures_[0].message(), "a planted fault");
}

class SlowExpertServerTest : public BusyExpertServerTest {
 protected:
  SlowExpertServerTest() { batch_timeout_ = absl::Milliseconds(30); }
};

TEST_F(SlowExpertServerTest, ABatchThatTakesTooLongIsDeclined) {
  node_.release_at_once = false;
  send_and_hold();
  ASSERT_TRUE(drive({&node_}, [&] { return node_.received.size() == 1; }));
  FrameView decline;
  ASSERT_EQ(parse_frame(node_.received[0].in_place, kLimits, &decline), Refusal::kNone);
  EXPECT_EQ(decline.header.kind, FrameKind::kDecline);
  EXPECT_EQ(decline.header.entry_count, 3u);
  EXPECT_EQ(server_->counters().failed_batches, 1u);
  node_.release_all();
}

}  // namespace
}  // namespace brigade::tests
