// A worker's side of the data plane, asked by hand: it answers its coordinator and nobody else.
#include "expert_parallel/experts/expert_server.h"

#include <cmath>

#include "absl/time/clock.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
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
    device_ = *kernels::Device::create(kernels::DeviceKind::kCpu, 1);
    shard_ = *ExpertShard::create(
        *device_, {.moe_layers = 2, .experts = 4, .top_k = 2, .hidden = 16, .ffn = 8});
    auto upload = *kernels::StagedUpload::create(*device_);
    const std::vector<float> matrix(16 * 8, 0.125f);
    for (const int expert : {0, 2}) {
      ASSERT_TRUE(
          shard_->load(*upload, 1, expert, {matrix.data(), matrix.data(), matrix.data()}).ok());
    }
    server_ = *ExpertServer::create(make_loopback_transport(hub_), *device_, *shard_,
                                    {.limits = kLimits}, nullptr);
    server_->start();
    const absl::Time soon = absl::Now() + absl::Seconds(10);
    link_ = *node_.transport().open_link();
    const std::string there = *server_->open(kSession, kCoordinatorParty, kWorkerParty, soon);
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

}  // namespace
}  // namespace brigade::tests
