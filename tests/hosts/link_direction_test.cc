// The faults of an emulated link, without the link.
#include "tests/support/link_emulator/link_direction.h"

#include "gtest/gtest.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(LinkDirection, DelaysEveryPacketAndKeepsOrder) {
  LinkDirection link(1);
  link.faults().delay = absl::Milliseconds(5);
  link.faults().jitter = absl::Milliseconds(4);
  for (int i = 0; i < 50; ++i) link.put(std::to_string(i), kStart + i * absl::Microseconds(100));
  std::string packet;
  EXPECT_FALSE(link.take(kStart + absl::Milliseconds(4.9), &packet));
  for (int i = 0; i < 50; ++i) {
    const absl::Time due = link.next_due();
    EXPECT_GE(due, kStart + i * absl::Microseconds(100) + absl::Milliseconds(5));
    EXPECT_LE(due, kStart + absl::Milliseconds(5 + 9));
    ASSERT_TRUE(link.take(due, &packet));
    EXPECT_EQ(packet, std::to_string(i));
  }
  EXPECT_EQ(link.next_due(), absl::InfiniteFuture());
  EXPECT_EQ(link.counts().passed, 50u);
  EXPECT_EQ(link.counts().overtaken, 0u);
}

TEST(LinkDirection, LosesAndReordersAsOftenAsItIsTold) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("link_direction_test", seed));
  LinkDirection link(seed);
  link.faults().loss = 0.2;
  link.faults().reorder = 0.1;
  const int packets = 3000;
  std::string packet;
  uint64_t taken = 0;
  for (int i = 0; i < packets; ++i) {
    const absl::Time now = kStart + i * absl::Milliseconds(1);
    link.put("x", now);
    while (link.take(now, &packet)) ++taken;
  }
  while (link.take(kStart + absl::Hours(1), &packet)) ++taken;
  const LinkCounts& counts = link.counts();
  EXPECT_EQ(counts.seen, 3000u);
  EXPECT_EQ(counts.passed, taken);
  EXPECT_EQ(counts.passed + counts.lost, counts.seen);
  // Five standard deviations of a binomial: 110 and 75.
  EXPECT_NEAR(static_cast<double>(counts.lost), 600, 110);
  EXPECT_NEAR(static_cast<double>(counts.held_back), 240, 75);
  EXPECT_GT(counts.overtaken, counts.held_back / 2);
}

TEST(LinkDirection, IsBoundedAndCanBeCut) {
  LinkDirection link(1);
  for (size_t i = 0; i < LinkDirection::kMaxPackets + 7; ++i) link.put("x", kStart);
  EXPECT_EQ(link.counts().overflowed, 7u);
  link.faults().cut = true;
  std::string packet;
  ASSERT_TRUE(link.take(kStart, &packet));
  link.put("y", kStart);
  EXPECT_EQ(link.counts().cut, 1u);
  link.faults().cut = false;
  link.put("z", kStart);
  while (link.take(kStart, &packet)) {
  }
  EXPECT_EQ(packet, "z");
}

TEST(LinkDirection, TheSameSeedDoesTheSame) {
  std::string taken[2];
  for (std::string& text : taken) {
    LinkDirection link(77);
    link.faults().jitter = absl::Milliseconds(1);
    link.faults().loss = link.faults().reorder = 0.3;
    for (int i = 0; i < 100; ++i)
      link.put(std::to_string(i) + " ", kStart + i * absl::Milliseconds(1));
    for (std::string packet; link.take(kStart + absl::Hours(1), &packet);) text += packet;
  }
  EXPECT_EQ(taken[0], taken[1]);
}

}  // namespace
}  // namespace brigade::tests
