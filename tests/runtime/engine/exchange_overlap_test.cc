#include "runtime/engine/exchange_overlap.h"

#include "gtest/gtest.h"

namespace brigade::tests {
namespace {

absl::Time at(int ms) { return absl::UnixEpoch() + absl::Milliseconds(ms); }

TEST(ExchangeOverlap, OneMicrobatchCoversNothing) {
  runtime::ExchangeOverlap overlap(1);
  overlap.drove(0, at(0), at(10), 1);   // computes, begins trip 1
  overlap.drove(0, at(12), at(12), 1);  // looks
  overlap.drove(0, at(15), at(20), 2);  // takes the answers after 5 ms, computes, begins trip 2
  overlap.drove(0, at(24), at(30), 0);  // 4 ms more; done
  EXPECT_EQ(overlap.under_way(), absl::Milliseconds(9));
  EXPECT_EQ(overlap.covered(), absl::ZeroDuration());
}

TEST(ExchangeOverlap, CountsWhatOthersComputeMeanwhile) {
  runtime::ExchangeOverlap overlap(3);
  overlap.drove(0, at(0), at(10), 1);
  overlap.drove(1, at(10), at(16), 1);  // covers 6 ms of 0's trip
  overlap.drove(0, at(17), at(17), 1);  // looks: covers nothing of 1's
  overlap.drove(2, at(17), at(18), 1);  // covers 1 ms of two trips
  overlap.drove(0, at(20), at(22), 0);  // 10 ms under way; covers 2 ms of two trips
  EXPECT_EQ(overlap.under_way(), absl::Milliseconds(10));
  EXPECT_EQ(overlap.covered(), absl::Milliseconds(6 + 2 + 4));
  overlap.drove(1, at(22), at(22), 0);
  overlap.drove(2, at(22), at(22), 0);
  EXPECT_EQ(overlap.under_way(), absl::Milliseconds(10 + 6 + 4));
}

}  // namespace
}  // namespace brigade::tests
