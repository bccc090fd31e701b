// One suite for every transport: order, sizes, many peers, flow control, lifetimes of buffers,
// ends.
#include <algorithm>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/expert_parallel/transport_kinds.h"
#include "tests/support/test_env.h"
#include "tests/support/transport_node.h"

namespace brigade::tests {
namespace {

using expert_parallel::kMaxFrameBytes;
using expert_parallel::PeerId;
using expert_parallel::TransportOptions;

std::string pattern(size_t bytes, uint64_t seed) {
  std::string text(bytes, '\0');
  std::mt19937_64 random(seed);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(&text[i], &word, 8);
  }
  return text;
}

class TransportConformance : public ::testing::TestWithParam<TransportKind> {
 protected:
  void SetUp() override { factory_ = GetParam().make_factory(); }
  std::unique_ptr<TransportNode> make_node(const TransportOptions& options = {}) {
    return std::make_unique<TransportNode>(factory_(options));
  }
  TransportFactory factory_;
};

INSTANTIATE_TEST_SUITE_P(Transports, TransportConformance, ::testing::ValuesIn(transport_kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(TransportConformance, KeepsOrderAndBytesBothWays) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("transport_conformance_test", seed));
  std::mt19937_64 random(seed);
  auto a = make_node(), b = make_node();
  const NodeLink link = link_nodes(*a, *b);
  const int count = scaled(300, 40);
  std::vector<std::string> to_b, to_a;
  for (int i = 0; i < count; ++i) {
    to_b.push_back(pattern(random() % (i % 10 == 0 ? 300000 : 3000), random()));
    to_a.push_back(pattern(random() % 5000, random()));
  }
  size_t next_a = 0, next_b = 0;
  const auto feed = [&](TransportNode& node, PeerId peer, const std::vector<std::string>& texts,
                        size_t& next) {
    while (next < texts.size()) {
      const absl::Status status = node.send(peer, texts[next], next);
      if (absl::IsResourceExhausted(status)) return;
      ASSERT_TRUE(status.ok()) << status;
      ++next;
    }
  };
  EXPECT_TRUE(drive({a.get(), b.get()}, [&] {
    feed(*a, link.a, to_b, next_a);
    feed(*b, link.b, to_a, next_b);
    return b->received.size() == to_b.size() && a->received.size() == to_a.size() &&
           a->sent.size() == to_b.size() && b->sent.size() == to_a.size();
  }));
  for (int i = 0; i < count; ++i) {
    ASSERT_TRUE(b->received[i].bytes == to_b[i]) << "message " << i;
    ASSERT_TRUE(a->received[i].bytes == to_a[i]) << "message " << i;
    EXPECT_EQ(b->received[i].peer, link.b);
  }
  EXPECT_EQ(a->sent_twice + b->sent_twice, 0);
}

TEST_P(TransportConformance, CarriesEmptyAndLargestAndRefusesLarger) {
  auto a = make_node(), b = make_node();
  const NodeLink link = link_nodes(*a, *b);
  EXPECT_EQ(a->transport().caps().max_message_bytes, kMaxFrameBytes);
  const std::string largest = pattern(kMaxFrameBytes, 7);
  ASSERT_TRUE(a->send(link.a, "", 0).ok());
  ASSERT_TRUE(a->send(link.a, "x", 1).ok());
  ASSERT_TRUE(a->send(link.a, largest, 2).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(a->send(link.a, largest + "x", 3)));
  ASSERT_TRUE(
      drive({a.get(), b.get()}, [&] { return b->received.size() == 3 && a->sent.size() == 3; }));
  EXPECT_EQ(b->received[0].bytes, "");
  EXPECT_EQ(b->received[1].bytes, "x");
  EXPECT_TRUE(b->received[2].bytes == largest);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b->received[2].in_place.data()) % 64, 0u);
}

TEST_P(TransportConformance, MovesLargeExchangesBothWaysAtOnce) {
  auto a = make_node({.window = 3}), b = make_node({.window = 2});
  const NodeLink link = link_nodes(*a, *b);
  const int frames = 12;
  for (int i = 0; i < frames; ++i) {
    ASSERT_TRUE(a->send(link.a, pattern(kMaxFrameBytes - i, 2 * i), i).ok());
    ASSERT_TRUE(b->send(link.b, pattern(kMaxFrameBytes - 7 * i, 2 * i + 1), i).ok());
  }
  ASSERT_TRUE(drive({a.get(), b.get()},
                    [&] { return a->received.size() == frames && b->received.size() == frames; }));
  for (int i = 0; i < frames; ++i) {
    EXPECT_TRUE(b->received[i].bytes == pattern(kMaxFrameBytes - i, 2 * i));
    EXPECT_TRUE(a->received[i].bytes == pattern(kMaxFrameBytes - 7 * i, 2 * i + 1));
  }
}

TEST_P(TransportConformance, ServesManyPeersAndIdleOnesBlockNobody) {
  auto center = make_node();
  std::vector<std::unique_ptr<TransportNode>> others;
  std::vector<NodeLink> links;
  std::vector<TransportNode*> all = {center.get()};
  for (int i = 0; i < 7; ++i) {
    others.push_back(make_node({.window = 2}));
    links.push_back(link_nodes(*center, *others[i]));
    all.push_back(others[i].get());
  }
  size_t expected = 0;
  center->transport().begin_group();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 7; ++i) {
      if (i % 3 == 1) continue;  // idle peers
      ASSERT_TRUE(
          center->send(links[i].a, absl::StrCat("to ", i, " round ", round), expected).ok());
      ASSERT_TRUE(others[i]->send(links[i].b, absl::StrCat("from ", i), round).ok());
      ++expected;
    }
  }
  center->transport().end_group();
  ASSERT_TRUE(drive(all, [&] {
    size_t arrived = 0;
    for (const auto& other : others) arrived += other->received.size();
    return arrived == expected && center->received.size() == expected;
  }));
  for (int i = 0; i < 7; ++i) {
    ASSERT_EQ(others[i]->received.size(), i % 3 == 1 ? 0u : 3u);
    for (size_t round = 0; round < others[i]->received.size(); ++round) {
      EXPECT_EQ(others[i]->received[round].bytes, absl::StrCat("to ", i, " round ", round));
    }
  }
  for (const auto& message : center->received) {
    const auto link = std::find_if(links.begin(), links.end(),
                                   [&](const NodeLink& l) { return l.a == message.peer; });
    EXPECT_EQ(message.bytes, absl::StrCat("from ", link - links.begin()));
  }
}

// Both sides fill each other's window and queue while neither releases; then both let go.
TEST_P(TransportConformance, FullQueuesBothWaysDoNotLock) {
  const TransportOptions options = {.window = 2, .send_queue = 6};
  auto a = make_node(options), b = make_node(options);
  const NodeLink link = link_nodes(*a, *b);
  a->release_at_once = b->release_at_once = false;
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(a->send(link.a, pattern(100000, i), i).ok());
    ASSERT_TRUE(b->send(link.b, pattern(100000, 100 + i), i).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(a->send(link.a, "one too many", 99)));
  ASSERT_TRUE(drive({a.get(), b.get()},
                    [&] { return a->received.size() == 2 && b->received.size() == 2; }));
  drive_for({a.get(), b.get()}, absl::Milliseconds(20));
  // No more than the window arrives, and no more completes, while buffers are held.
  EXPECT_EQ(a->received.size(), 2u);
  EXPECT_LE(a->sent.size(), 2u);
  EXPECT_TRUE(drive({a.get(), b.get()}, [&] {
    a->release_all();
    b->release_all();
    return a->received.size() == 6 && b->received.size() == 6 && a->sent.size() == 6 &&
           b->sent.size() == 6;
  }));
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(b->received[i].bytes == pattern(100000, i));
}

TEST_P(TransportConformance, OneSlowReceiverDoesNotHoldUpOthers) {
  auto center = make_node(), slow = make_node({.window = 1}), quick = make_node({.window = 1});
  const NodeLink to_slow = link_nodes(*center, *slow), to_quick = link_nodes(*center, *quick);
  slow->release_at_once = false;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(center->send(to_slow.a, pattern(50000, i), i).ok());
    ASSERT_TRUE(center->send(to_quick.a, pattern(50000, i), 100 + i).ok());
  }
  EXPECT_TRUE(
      drive({center.get(), slow.get(), quick.get()}, [&] { return quick->received.size() == 10; }));
  EXPECT_LE(slow->received.size(), 1u);
}

// openucx/ucx issue 5027: memory of a send is written again as soon as its completion is reported;
// the receiver, which is slow to take messages, must see the old bytes.
TEST_P(TransportConformance, MemoryMayBeReusedOnlyAndAlwaysAfterCompletion) {
  auto a = make_node(), b = make_node({.window = 2});
  const NodeLink link = link_nodes(*a, *b);
  b->release_at_once = false;
  std::vector<std::string> memory;
  for (int i = 0; i < 8; ++i) memory.push_back(pattern(i % 2 == 0 ? kMaxFrameBytes : 9000, i));
  const std::vector<std::string> original = memory;
  a->when_sent = [&](uint64_t cookie) {
    std::fill(memory[cookie].begin(), memory[cookie].end(), 'X');
  };
  for (uint64_t i = 0; i < memory.size(); ++i) {
    ASSERT_TRUE(a->transport().send(link.a, {.head = std::as_bytes(std::span(memory[i]))}, i).ok());
  }
  ASSERT_TRUE(drive({a.get(), b.get()}, [&] {
    b->release_all();
    return b->received.size() == memory.size() && a->sent.size() == memory.size();
  }));
  for (size_t i = 0; i < memory.size(); ++i) EXPECT_TRUE(b->received[i].bytes == original[i]) << i;
  EXPECT_EQ(a->sent_twice, 0);
}

// The same while the receiver does not run at all, with more bytes than sockets and shared memory
// hold: a completion told when a send was merely started gives its memory away under way.
TEST_P(TransportConformance, NothingCompletesWhileItsBytesAreStillToBeSent) {
  const int messages = 48;  // 24 MiB
  auto a = make_node(), b = make_node({.window = messages});
  const NodeLink link = link_nodes(*a, *b);
  ASSERT_TRUE(b->send(link.b, "both ends are there", 0).ok());
  ASSERT_TRUE(drive({a.get(), b.get()}, [&] { return a->received.size() == 1; }));
  std::vector<std::string> memory;
  for (int i = 0; i < messages; ++i) memory.push_back(pattern(kMaxFrameBytes - 64 * i, i));
  const std::vector<std::string> original = memory;
  a->when_sent = [&](uint64_t cookie) {
    std::fill(memory[cookie].begin(), memory[cookie].end(), 'X');
  };
  for (int i = 0; i < messages; ++i) {
    const auto bytes = std::as_bytes(std::span(memory[i]));
    // Every other message in two pieces.
    const size_t head = i % 2 == 0 ? bytes.size() : 4096;
    ASSERT_TRUE(a->transport()
                    .send(link.a, {.head = bytes.first(head), .body = bytes.subspan(head)}, i)
                    .ok());
  }
  drive_for({a.get()}, absl::Milliseconds(20));
  const size_t told_early = a->sent.size();
  ASSERT_TRUE(drive({a.get(), b.get()}, [&] {
    return b->received.size() == memory.size() && a->sent.size() == memory.size();
  }));
  for (size_t i = 0; i < memory.size(); ++i) EXPECT_TRUE(b->received[i].bytes == original[i]) << i;
  if (GetParam().name != "loopback") {
    EXPECT_LT(told_early, memory.size());
  }
}

TEST_P(TransportConformance, ClosingInMidTransferReturnsAndCompletesEverySend) {
  const int rounds = scaled(20, 4);
  auto a = make_node();
  for (int round = 0; round < rounds; ++round) {
    auto b = make_node({.window = 2});
    b->release_at_once = false;
    const NodeLink link = link_nodes(*a, *b);
    std::vector<std::string> memory;
    for (int i = 0; i < 6; ++i) memory.push_back(pattern(kMaxFrameBytes, i));
    a->sent.clear();
    a->when_sent = [&](uint64_t cookie) {
      std::fill(memory[cookie].begin(), memory[cookie].end(), 'X');
    };
    for (uint64_t i = 0; i < memory.size(); ++i) {
      ASSERT_TRUE(
          a->transport().send(link.a, {.head = std::as_bytes(std::span(memory[i]))}, i).ok());
    }
    for (int turns = 0; turns < round; ++turns) {  // another moment each round
      a->transport().progress();
      b->transport().progress();
    }
    a->transport().close_peer(link.a);
    a->transport().close_peer(link.a);  // twice is as good as once
    EXPECT_TRUE(absl::IsUnavailable(a->send(link.a, "after the end", 77)));
    ASSERT_TRUE(drive({a.get(), b.get()}, [&] { return a->sent.size() == 6; }))
        << "round " << round;
    EXPECT_TRUE(absl::IsCancelled(a->sent[5])) << a->sent[5];
    // What did arrive is whole, and stays readable after the end.
    b->transport().close_peer(link.b);
    drive_for({a.get(), b.get()}, absl::Milliseconds(2));
    for (size_t i = 0; i < b->received.size(); ++i) {
      EXPECT_TRUE(b->received[i].bytes == pattern(kMaxFrameBytes, i));
      EXPECT_EQ(0, std::memcmp(b->received[i].in_place.data(), b->received[i].bytes.data(),
                               kMaxFrameBytes));
    }
    b->release_all();
    a->when_sent = nullptr;
  }
  EXPECT_EQ(a->sent_twice, 0);
  EXPECT_TRUE(a->lost.empty()) << "a closed link is not lost as well";
}

TEST_P(TransportConformance, ALostPeerIsReportedOnceAndOthersGoOn) {
  if (!GetParam().sees_end_within_process)
    GTEST_SKIP() << "done with processes in ucx_processes_test";
  auto center = make_node(), victim = make_node(), survivor = make_node();
  const NodeLink to_victim = link_nodes(*center, *victim),
                 to_survivor = link_nodes(*center, *survivor);
  victim->release_at_once = false;
  ASSERT_TRUE(center->send(to_victim.a, "hello", 0).ok());
  ASSERT_TRUE(drive({center.get(), victim.get(), survivor.get()},
                    [&] { return victim->received.size() == 1; }));
  for (int i = 1; i < 14; ++i)
    ASSERT_TRUE(center->send(to_victim.a, pattern(kMaxFrameBytes, i), i).ok());
  center->transport().progress();
  victim->destroy();
  ASSERT_TRUE(
      drive({center.get(), survivor.get()}, [&] { return center->lost.count(to_victim.a) == 1; }));
  EXPECT_TRUE(absl::IsUnavailable(center->send(to_victim.a, "too late", 50)));
  center->transport().close_peer(to_victim.a);
  ASSERT_TRUE(drive({center.get(), survivor.get()}, [&] { return center->sent.size() == 14; }));
  ASSERT_TRUE(center->send(to_survivor.a, "still there", 60).ok());
  EXPECT_TRUE(
      drive({center.get(), survivor.get()}, [&] { return survivor->received.size() == 1; }));
  // A new life of the same peer joins over a new link.
  auto reborn = make_node();
  const NodeLink again = link_nodes(*center, *reborn);
  ASSERT_TRUE(reborn->send(again.b, "I am back", 0).ok());
  EXPECT_TRUE(drive({center.get(), survivor.get(), reborn.get()},
                    [&] { return center->received.size() == 1; }));
  EXPECT_NE(again.a, to_victim.a);
}

TEST_P(TransportConformance, RefusesBytesThatAreNoAddress) {
  auto a = make_node(), b = make_node();
  const PeerId link = *a->transport().open_link(), other = *b->transport().open_link();
  const std::string good = *b->transport().address(other);
  EXPECT_LE(good.size(), expert_parallel::kMaxAddressBytes);
  EXPECT_TRUE(absl::IsInvalidArgument(a->transport().connect(link, "")));
  EXPECT_TRUE(absl::IsInvalidArgument(a->transport().connect(link, "somewhere else")));
  EXPECT_TRUE(absl::IsInvalidArgument(a->transport().connect(link, std::string(100000, 'x'))));
  EXPECT_TRUE(
      absl::IsInvalidArgument(a->transport().connect(link, good.substr(0, good.size() - 1))));
  EXPECT_TRUE(absl::IsUnavailable(a->send(link, "nowhere", 0)));
  EXPECT_TRUE(a->transport().connect(link, good).ok());
  EXPECT_FALSE(a->transport().connect(99, good).ok());
}

TEST_P(TransportConformance, ShutsDownTwiceAndInTime) {
  auto a = make_node(), b = make_node({.window = 1});
  const NodeLink link = link_nodes(*a, *b);
  b->release_at_once = false;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(a->send(link.a, pattern(kMaxFrameBytes, i), i).ok());
  a->transport().progress();
  const absl::Time start = absl::Now();
  EXPECT_TRUE(a->transport().shut_down(start + absl::Seconds(5)).ok());
  EXPECT_TRUE(a->transport().shut_down(start + absl::Seconds(5)).ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(a->sent.size(), 5u);
}

}  // namespace
}  // namespace brigade::tests
