// UCX between real processes: a peer is killed while frames are under way, the others go on and a
// new life joins; shared memory is used only where it may be; outsiders are refused.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "expert_parallel/transport/link_address.h"
#include "expert_parallel/transport/ucx_transport.h"
#include "gtest/gtest.h"
#include "tests/support/peer_process.h"
#include "tests/support/test_env.h"
#include "tests/support/transport_node.h"

namespace brigade::tests {
namespace {

using namespace expert_parallel;

constexpr char kChildVariable[] = "BRIGADE_TEST_UCX_CHILD";

std::unique_ptr<TransportNode> make_node(bool shared_memory) {
  auto transport = make_ucx_transport(
      {.shared_memory = shared_memory, .net_devices = shared_memory ? "" : "lo"});
  EXPECT_TRUE(transport.ok()) << transport.status();
  return std::make_unique<TransportNode>(*std::move(transport));
}

constexpr int kFloodDepth = 16;  // sends under way at once

// The other process: echoes small messages, holds large ones, and ends when its input does. Told to
// flood it sends large ones as fast as they go.
int child_main(bool shared_memory) {
  auto node = make_node(shared_memory);
  const PeerId link = *node->transport().open_link();
  write_address(STDOUT_FILENO, *node->transport().address(link));
  if (!node->transport().connect(link, read_address(STDIN_FILENO)).ok()) return 3;
  node->release_at_once = false;
  uint64_t cookie = 0;
  bool flooding = false;
  const std::string large(kMaxFrameBytes, 'y');
  drive(
      {node.get()},
      [&] {
        for (auto& message : node->received) {
          flooding |= message.bytes == "flood";
          if (flooding) break;
          if (message.receipt == 0 || message.bytes.size() > 1000) continue;
          EXPECT_TRUE(node->send(link, "echo " + message.bytes, cookie++).ok());
          node->transport().release(message.receipt);
          message.receipt = 0;
        }
        while (flooding && cookie < node->sent.size() + kFloodDepth)
          EXPECT_TRUE(node->send(link, large, cookie++).ok());
        return !node->lost.empty();
      },
      absl::Seconds(60));
  return 0;
}

std::vector<std::pair<std::string, std::string>> child(bool shared_memory) {
  return {{kChildVariable, shared_memory ? "shm" : "tcp"}};
}

class UcxProcesses : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Lanes, UcxProcesses, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "shm" : "tcp"; });

bool echoes(TransportNode& node, PeerId link, uint64_t cookie) {
  const size_t before = node.received.size();
  EXPECT_TRUE(node.send(link, "are you there", cookie).ok());
  return drive({&node}, [&] { return node.received.size() > before; }) &&
         node.received.back().bytes == "echo are you there";
}

TEST_P(UcxProcesses, AKilledPeerIsSeenInMidFrameAndOthersGoOn) {
  auto node = make_node(GetParam());
  PeerProcess survivor(child(GetParam()));
  const PeerId to_survivor = survivor.join(*node);
  ASSERT_TRUE(echoes(*node, to_survivor, 1));
  const std::string large(kMaxFrameBytes, 'x');
  for (const bool in_mid_frame : {false, true}) {
    SCOPED_TRACE(in_mid_frame ? "frames under way" : "idle");
    PeerProcess victim(child(GetParam()));
    const PeerId to_victim = victim.join(*node);
    ASSERT_TRUE(echoes(*node, to_victim, 2 + 100 * in_mid_frame));
    node->sent.clear();
    if (in_mid_frame) {
      victim.signal(SIGSTOP);
      for (int i = 0; i < 12; ++i) ASSERT_TRUE(node->send(to_victim, large, 1000 + i).ok());
      drive_for({node.get()}, absl::Milliseconds(5));
    }
    const absl::Time killed = absl::Now();
    victim.kill_and_wait();
    // Well below the sleep of a loop that was not told.
    ASSERT_TRUE(drive(
        {node.get()}, [&] { return node->lost.count(to_victim) == 1; }, absl::Seconds(10)));
    EXPECT_LT(absl::Now() - killed, absl::Seconds(9));
    std::cout << (GetParam() ? "shm" : "tcp") << (in_mid_frame ? ", frames under way" : ", idle")
              << ": loss seen after " << absl::FormatDuration(absl::Now() - killed) << "\n";
    node->transport().close_peer(to_victim);
    if (in_mid_frame) {
      const auto all_ended = [&] {
        for (int i = 0; i < 12; ++i) {
          if (node->sent.count(1000 + i) == 0) return false;
        }
        return true;
      };
      ASSERT_TRUE(drive({node.get()}, all_ended));
    }
    EXPECT_TRUE(echoes(*node, to_survivor, 50 + in_mid_frame));
    PeerProcess reborn(child(GetParam()));
    EXPECT_TRUE(echoes(*node, reborn.join(*node), 60 + in_mid_frame));
    // The survivor's link has never been touched.
    EXPECT_EQ(node->lost.count(to_survivor), 0u);
  }
}

// A sender that dies while it writes into memory that others send through too leaves a hole there.
// Nobody but its own link may be stopped by it.
TEST_P(UcxProcesses, AKillInsideASendHurtsNobodyElse) {
  std::mt19937_64 random(test_seed());
  auto node = make_node(GetParam());
  PeerProcess survivor(child(GetParam()));
  const PeerId to_survivor = survivor.join(*node);
  ASSERT_TRUE(echoes(*node, to_survivor, 1));
  for (int round = 0; round < scaled(60, 12); ++round) {
    PeerProcess victim(child(GetParam()));
    const PeerId to_victim = victim.join(*node);
    node->received.clear();
    ASSERT_TRUE(node->send(to_victim, "flood", 100 + 2 * round).ok());
    const size_t enough = 2 + random() % 12;
    ASSERT_TRUE(drive({node.get()}, [&] { return node->received.size() >= enough; }));
    victim.kill_and_wait();
    node->transport().close_peer(to_victim);
    drive_for({node.get()}, absl::Milliseconds(1));
    node->received.clear();
    ASSERT_TRUE(echoes(*node, to_survivor, 101 + 2 * round)) << "after kill number " << round;
  }
  EXPECT_EQ(node->lost.count(to_survivor), 0u);
}

TEST(Ucx, TakesSharedMemoryOnlyBetweenEqualNamespaces) {
  auto a = make_node(true), b = make_node(true);
  const PeerId at_a = *a->transport().open_link(), at_b = *b->transport().open_link();
  const std::string address = *b->transport().address(at_b);
  ASSERT_TRUE(a->transport().connect(at_a, address).ok());
  EXPECT_NE(ucx_lanes(a->transport(), at_a).find("posix"), std::string::npos)
      << ucx_lanes(a->transport(), at_a);
  LinkAddress elsewhere = *decode_link_address(address);
  elsewhere.host.namespaces[0] += 1;  // another network namespace on the same host
  const PeerId other = *a->transport().open_link();
  ASSERT_TRUE(a->transport().connect(other, encode_link_address(elsewhere)).ok());
  const std::string lanes = ucx_lanes(a->transport(), other);
  EXPECT_EQ(lanes.find("posix"), std::string::npos) << lanes;
  EXPECT_NE(lanes.find("tcp"), std::string::npos) << lanes;
}

// Someone who can reach the worker but was not given a link.
TEST(Ucx, ThrowsStrangersMessagesAway) {
  auto node = make_node(false), friendly = make_node(false), stranger = make_node(false);
  const NodeLink link = link_nodes(*node, *friendly);
  const PeerId at_stranger = *stranger->transport().open_link();
  LinkAddress guessed = *decode_link_address(*node->transport().address(link.a));
  guessed.nonce ^= 1;
  ASSERT_TRUE(stranger->transport().connect(at_stranger, encode_link_address(guessed)).ok());
  ASSERT_TRUE(stranger->send(at_stranger, "let me in", 0).ok());
  ASSERT_TRUE(stranger->send(at_stranger, std::string(kMaxFrameBytes, 's'), 1).ok());
  EXPECT_TRUE(drive({node.get(), friendly.get(), stranger.get()},
                    [&] { return node->transport().strangers_refused() >= 2; }));
  EXPECT_TRUE(node->received.empty());
  ASSERT_TRUE(friendly->send(link.b, "and me", 0).ok());
  EXPECT_TRUE(drive({node.get(), friendly.get(), stranger.get()},
                    [&] { return node->received.size() == 1; }));
  EXPECT_EQ(node->received[0].bytes, "and me");
}

TEST(Ucx, AddressesThatWereChangedAreRefused) {
  auto node = make_node(false);
  const PeerId link = *node->transport().open_link();
  const std::string good = *node->transport().address(link);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 0x10;
    EXPECT_FALSE(decode_link_address(bad).ok()) << "byte " << i;
    EXPECT_FALSE(decode_link_address(good.substr(0, i)).ok()) << "cut at " << i;
  }
  EXPECT_TRUE(decode_link_address(good).ok());
}

}  // namespace
}  // namespace brigade::tests

int main(int argc, char** argv) {
  if (const char* mode = std::getenv(brigade::tests::kChildVariable)) {
    return brigade::tests::child_main(std::string(mode) == "shm");
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
