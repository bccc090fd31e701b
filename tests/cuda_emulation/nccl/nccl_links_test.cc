// NCCL links when things go wrong: ends that disagree, peers that never come or are killed in
// mid-transfer, links that end while others go on. Between devices of one process, and processes.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "expert_parallel/transport/nccl_trailer.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/nccl/nccl_bed.h"
#include "tests/cuda_emulation/nccl/nccl_control.h"
#include "tests/support/fault_transport.h"
#include "tests/support/test_env.h"
#include "tests/support/transport_node.h"
#ifdef BRIGADE_HAVE_UCX
#include "expert_parallel/transport/ucx_transport.h"
#include "tests/support/peer_process.h"
#endif

namespace brigade::tests {
namespace {

using namespace expert_parallel;

TransportOptions heads(TransportOptions options) {
  options.max_message_bytes += kNcclTrailerBytes;
  return options;
}

class NcclLinks : public ::testing::Test {
 protected:
  void SetUp() override { violations_ = cuda_emulation::nccl_violations(); }
  void TearDown() override {
    EXPECT_EQ(cuda_emulation::nccl_violations() - violations_, allowed_violations_)
        << cuda_emulation::last_nccl_violation();
  }
  // Over `host`, or a loopback of this test's hub.
  std::unique_ptr<TransportNode> make_node(int device, NcclOptions options,
                                           std::unique_ptr<Transport> host = nullptr) {
    options.makes_ids = device == 0;
    if (host == nullptr) host = make_loopback_transport(hub_, heads(options.transport));
    auto on = make_emulated_device(device);
    auto nccl = make_nccl_transport(std::move(host), *on, options);
    return std::make_unique<TransportNode>(
        std::make_unique<StagedBodies>(std::move(on), std::move(nccl)));
  }
  const std::shared_ptr<LoopbackHub> hub_ = make_loopback_hub();
  uint64_t violations_ = 0, allowed_violations_ = 0;
};

TEST_F(NcclLinks, APeerThatNeverComesIsLostAtTheDeadline) {
  auto node = make_node(0, {.join_deadline = absl::Milliseconds(50)}), other = make_node(1, {});
  const PeerId link = *node->transport().open_link(), there = *other->transport().open_link();
  ASSERT_TRUE(node->transport().connect(link, *other->transport().address(there)).ok());
  ASSERT_TRUE(node->send(link, "is anybody there", 0).ok());
  ASSERT_TRUE(drive({node.get()}, [&] { return node->lost.count(link) == 1; }));
  EXPECT_EQ(node->lost[link].code(), absl::StatusCode::kDeadlineExceeded) << node->lost[link];
  node->transport().close_peer(link);
  EXPECT_TRUE(drive({node.get()}, [&] { return node->sent.size() == 1; }));
}

TEST_F(NcclLinks, TwoEndsOnOneGpuAreRefusedWithASentence) {
  auto a = make_node(0, {});
  auto device = make_emulated_device(0);
  auto b = make_nccl_transport(make_loopback_transport(hub_, heads({})), *device, {});
  const PeerId at_a = *a->transport().open_link(), at_b = *b->open_link();
  const absl::Status refused = a->transport().connect(at_a, *b->address(at_b));
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_NE(std::string(refused.message()).find("same GPU"), std::string::npos) << refused;
}

// A host transport of which every arriving message's trailer is changed.
std::unique_ptr<Transport> changing_trailers(std::unique_ptr<Transport> inner,
                                             NcclTrailer (*change)(NcclTrailer)) {
  auto host = std::make_unique<FaultTransport>(std::move(inner), 1);
  host->decide = [change](PeerId, std::span<const std::byte> bytes) {
    auto* at = const_cast<std::byte*>(&bytes[bytes.size() - sizeof(NcclTrailer)]);
    NcclTrailer trailer;
    std::memcpy(&trailer, at, sizeof(trailer));
    trailer = change(trailer);
    std::memcpy(at, &trailer, sizeof(trailer));
    return Fault{};
  };
  return host;
}

// The planted bug: of two heads in a row the lengths of the bodies are swapped, as by a sender that
// posts out of order. It must not pass as data.
TEST_F(NcclLinks, SwappedCountsOfASendAndAReceiveAreFound) {
  allowed_violations_ = 1;
  auto host = changing_trailers(make_loopback_transport(hub_, heads({})), [](NcclTrailer trailer) {
    return make_trailer(trailer.number, 3000 - trailer.body_bytes);
  });
  auto a = make_node(0, {}), b = make_node(1, {}, std::move(host));
  const NodeLink link = link_nodes(*a, *b);
  ASSERT_TRUE(a->send(link.a, std::string(1500, 'x'), 0).ok());  // a third of it is head
  ASSERT_TRUE(a->send(link.a, std::string(3000, 'y'), 1).ok());
  ASSERT_TRUE(drive({a.get(), b.get()}, [&] { return b->lost.count(link.b) == 1; }));
  EXPECT_TRUE(b->received.empty());
  EXPECT_NE(std::string(b->lost[link.b].message()).find("meets a receive of"), std::string::npos)
      << b->lost[link.b];
}

// NCCL would wait for a body of that length until the deadline.
TEST_F(NcclLinks, ALengthThatWasChangedOnItsWayNeverReachesNccl) {
  auto host = changing_trailers(make_loopback_transport(hub_, heads({})), [](NcclTrailer trailer) {
    trailer.body_bytes ^= 4096;
    return trailer;
  });
  auto a = make_node(0, {}), b = make_node(1, {}, std::move(host));
  const NodeLink link = link_nodes(*a, *b);
  ASSERT_TRUE(a->send(link.a, std::string(30000, 'x'), 0).ok());
  ASSERT_TRUE(drive({a.get(), b.get()}, [&] { return b->lost.count(link.b) == 1; }));
  EXPECT_NE(std::string(b->lost[link.b].message()).find("head 0 was changed on its way"),
            std::string::npos)
      << b->lost[link.b];
}

// A link is ended in the middle of transfers, again and again, while another carries on.
TEST_F(NcclLinks, AbortsOfOnePairDisturbNoOther) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("nccl_links_test", seed));
  std::mt19937_64 random(seed);
  auto center = make_node(0, {}), survivor = make_node(1, {});
  const NodeLink steady = link_nodes(*center, *survivor);
  uint64_t cookie = 0;
  for (int round = 0; round < scaled(12, 4); ++round) {
    auto victim = make_node(2, {});
    victim->release_at_once = random() % 2 == 0;
    const NodeLink link = link_nodes(*center, *victim);
    const int sends = 6;
    const uint64_t first = cookie;
    for (int i = 0; i < sends; ++i) {
      ASSERT_TRUE(center->send(link.a, std::string(400000, 'v'), cookie++).ok());
      ASSERT_TRUE(center->send(steady.a, std::string(100000, 's'), cookie++).ok());
      ASSERT_TRUE(victim->send(link.b, std::string(200000, 'w'), i).ok());
    }
    const size_t enough = random() % 5;
    ASSERT_TRUE(drive({center.get(), survivor.get(), victim.get()},
                      [&] { return victim->received.size() >= enough; }));
    if (random() % 2 == 0) victim->destroy();
    center->transport().close_peer(link.a);
    ASSERT_TRUE(drive({center.get(), survivor.get()},
                      [&] {
                        size_t ended = 0;
                        for (uint64_t i = first; i < cookie; ++i) ended += center->sent.count(i);
                        return ended == cookie - first && survivor->received.size() == cookie / 2;
                      }))
        << "round " << round;
  }
  EXPECT_EQ(center->lost.count(steady.a), 0u);
  EXPECT_EQ(survivor->lost.size(), 0u);
  for (const auto& message : survivor->received) ASSERT_EQ(message.bytes.size(), 100000u);
}

// NCCL fails all of a group with one communicator that has failed, and the network may say so at
// any moment: also when the next transfers are about to go.
TEST_F(NcclLinks, AFailedPairTakesNoOtherWithIt) {
  auto center = make_node(0, {}), survivor = make_node(1, {});
  uint64_t cookie = 0;
  // Once both ways have carried something, both communicators are there, at both ends.
  const auto link_both_ways = [&](TransportNode& other, NodeLink* link) {
    *link = link_nodes(*center, other);
    const size_t before = center->received.size();
    ASSERT_TRUE(center->send(link->a, "are you there", cookie++).ok());
    ASSERT_TRUE(other.send(link->b, "yes", 0).ok());
    ASSERT_TRUE(drive({center.get(), &other}, [&] {
      return other.received.size() == 1 && center->received.size() == before + 1;
    }));
  };
  NodeLink steady, link;
  link_both_ways(*survivor, &steady);
  for (int round = 0; round < 4; ++round) {
    auto victim = make_node(2, {});
    link_both_ways(*victim, &link);
    cuda_emulation::fail_newest_communicators(4);  // both of the pair, at both ends
    ASSERT_TRUE(center->send(link.a, std::string(30000, 'v'), cookie++).ok());
    ASSERT_TRUE(center->send(steady.a, std::string(30000, 's'), cookie++).ok());
    const size_t received = round + 2;
    ASSERT_TRUE(drive(
        {center.get(), survivor.get(), victim.get()},
        [&] { return center->lost.count(link.a) == 1 && survivor->received.size() == received; }))
        << "round " << round;
    center->transport().close_peer(link.a);
  }
  EXPECT_EQ(center->lost.count(steady.a), 0u) << center->lost[steady.a];
}

#ifdef BRIGADE_HAVE_UCX
// In the environment of a peer: its device.
constexpr char kPeerVariable[] = "BRIGADE_TEST_NCCL_PEER";

// Dies in the middle of transfer `kill_after`; 0: lives.
std::vector<std::pair<std::string, std::string>> peer_on(int device, int kill_after = 0) {
  return {{kPeerVariable, std::to_string(device)},
          {"BRIGADE_EMULATED_NCCL_KILL_AFTER", std::to_string(kill_after)}};
}

std::unique_ptr<Transport> make_ucx() {
  auto made =
      make_ucx_transport({.transport = heads({}), .shared_memory = false, .net_devices = "lo"});
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

bool echoes(TransportNode& node, PeerId link, uint64_t cookie) {
  const size_t before = node.received.size();
  EXPECT_TRUE(node.send(link, "are you there", cookie).ok());
  return drive({&node}, [&] { return node.received.size() > before; }) &&
         node.received.back().bytes == "echo are you there";
}

// A peer dies in the middle of its n-th transfer; its pair is aborted, the others go on, and a new
// life joins over a fresh pair. Also when NCCL does not tell, as between processes of one host.
TEST_F(NcclLinks, AProcessKilledInMidTransferEndsItsPairAlone) {
  auto node = make_node(0, {}, make_ucx());
  PeerProcess survivor(peer_on(1));
  const PeerId to_survivor = survivor.join(*node);
  ASSERT_TRUE(echoes(*node, to_survivor, 1));
  uint64_t cookie = 2;
  for (int round = 0; round < scaled(10, 4); ++round) {
    PeerProcess victim(peer_on(2, 2 + round));
    const PeerId to_victim = victim.join(*node);
    std::vector<uint64_t> sent;
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while ((!victim.ended() || node->lost.count(to_victim) == 0) && absl::Now() < deadline) {
      if (node->sent.size() + 8 > cookie &&
          node->send(to_victim, std::string(90000, 'x'), cookie).ok()) {
        sent.push_back(cookie++);
      }
      drive(
          {node.get()}, [&] { return node->lost.count(to_victim) == 1; }, absl::Milliseconds(5));
    }
    ASSERT_EQ(node->lost.count(to_victim), 1u) << "round " << round;
    node->transport().close_peer(to_victim);
    ASSERT_TRUE(drive({node.get()},
                      [&] {
                        for (const uint64_t i : sent) {
                          if (node->sent.count(i) == 0) return false;
                        }
                        return true;
                      }))
        << "round " << round;
    ASSERT_TRUE(echoes(*node, to_survivor, cookie++)) << "round " << round;
  }
  PeerProcess reborn(peer_on(2));
  EXPECT_TRUE(echoes(*node, reborn.join(*node), cookie++));
  EXPECT_EQ(node->lost.count(to_survivor), 0u);
}
#endif

}  // namespace

#ifdef BRIGADE_HAVE_UCX
// The other process: echoes what comes, and sends large answers.
int peer_main(int device) {
  auto on = make_emulated_device(device);
  auto nccl = make_nccl_transport(make_ucx(), *on, {});
  TransportNode node(std::make_unique<StagedBodies>(std::move(on), std::move(nccl)));
  const PeerId link = *node.transport().open_link();
  write_address(STDOUT_FILENO, *node.transport().address(link));
  if (!node.transport().connect(link, read_address(STDIN_FILENO)).ok()) return 3;
  uint64_t cookie = 0;
  size_t next = 0;
  drive(
      {&node},
      [&] {
        for (; next < node.received.size() && cookie < node.sent.size() + 8; ++next)
          EXPECT_TRUE(node.send(link, "echo " + node.received[next].bytes, cookie++).ok());
        return !node.lost.empty();
      },
      absl::Seconds(60));
  return 0;
}
#endif

}  // namespace brigade::tests

int main(int argc, char** argv) {
  // The loss of a peer is for the host transport to tell.
  setenv("BRIGADE_EMULATED_NCCL_SILENT", "1", /*overwrite=*/0);
#ifdef BRIGADE_HAVE_UCX
  if (const char* device = std::getenv(brigade::tests::kPeerVariable))
    return brigade::tests::peer_main(std::atoi(device));
#endif
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
