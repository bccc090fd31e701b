#include "expert_parallel/transport/frame.h"

#include <random>
#include <vector>

#include "expert_parallel/transport/aligned_block.h"
#include "gtest/gtest.h"
#include "tests/support/test_env.h"

namespace brigade::expert_parallel {
namespace {

using kernels::DType;

constexpr FrameLimits kLimits = {.hidden = 24, .experts = 9, .moe_layers = 3, .max_slots = 64};

const Session kSession = {.coordinator_id = 77, .secret = {1, 2, 3, 4, 5, 6, 7, 8, 9}};

// 3 rows with 2, 1 and 2 terms.
size_t write_dispatch(std::byte* frame) {
  const FrameHeader header = {.kind = FrameKind::kDispatch,
                              .hidden = 24,
                              .session = kSession,
                              .receiver = {2, 900},
                              .sender = {-1, 800},
                              .placement_version = 5,
                              .step = 1234567890123,
                              .microbatch = 1,
                              .layer = 2,
                              .frame_index = 1,
                              .frame_count = 4,
                              .row_count = 3,
                              .entry_count = 5};
  const FrameEntry entries[] = {{0, 3, 10}, {0, 8, 11}, {1, 0, 14}, {2, 3, 62}, {2, 7, 63}};
  for (uint32_t i = 0; i < 5; ++i) put_entry(frame_index(frame), i, entries[i]);
  float* rows = reinterpret_cast<float*>(frame_rows(frame, header.kind, header.entry_count));
  for (int i = 0; i < 3 * 24; ++i) rows[i] = 0.25f * i;
  return seal_frame(header, frame);
}

TEST(Frame, RoundTripsDispatch) {
  AlignedBlock block(1, kMaxFrameBytes);
  const size_t bytes = write_dispatch(block.at(0));
  EXPECT_EQ(bytes, kFrameHeaderBytes + 64 + 3 * 24 * 4);
  FrameView view;
  ASSERT_EQ(parse_frame({block.at(0), bytes}, kLimits, &view), Refusal::kNone);
  EXPECT_EQ(view.header.kind, FrameKind::kDispatch);
  EXPECT_EQ(view.header.step, 1234567890123u);
  EXPECT_EQ(view.header.placement_version, 5u);
  EXPECT_EQ(view.header.microbatch, 1u);
  EXPECT_EQ(view.header.layer, 2u);
  EXPECT_EQ(view.header.frame_index, 1u);
  EXPECT_EQ(view.header.frame_count, 4u);
  EXPECT_EQ(view.header.row_count, 3u);
  EXPECT_EQ(view.entry(3).row, 2);
  EXPECT_EQ(view.entry(3).expert, 3);
  EXPECT_EQ(view.entry(4).slot, 63u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.rows) % kFrameAlignment, 0u);
  EXPECT_EQ(reinterpret_cast<const float*>(view.rows)[71], 0.25f * 71);
  EXPECT_EQ(check_parties(view.header, kSession, {2, 900}, {-1, 800}), Refusal::kNone);
}

TEST(Frame, RoundTripsAnswersInBothWireDtypesAndDeclines) {
  AlignedBlock block(1, kMaxFrameBytes);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    FrameLimits limits = kLimits;
    limits.answer_dtype = dtype;
    FrameHeader header = {.kind = FrameKind::kAnswer,
                          .dtype = dtype,
                          .hidden = 24,
                          .session = kSession,
                          .row_count = 2,
                          .entry_count = 2};
    put_slot(frame_index(block.at(0)), 0, 63);
    put_slot(frame_index(block.at(0)), 1, 0);
    FrameView view;
    ASSERT_EQ(parse_frame({block.at(0), seal_frame(header, block.at(0))}, limits, &view),
              Refusal::kNone);
    EXPECT_EQ(view.slot(0), 63u);
    header.kind = FrameKind::kDecline;
    header.row_count = 0;
    ASSERT_EQ(parse_frame({block.at(0), seal_frame(header, block.at(0))}, limits, &view),
              Refusal::kNone);
    EXPECT_EQ(view.slot(1), 0u);
  }
}

TEST(Frame, EveryFlippedBitIsRefused) {
  AlignedBlock block(1, kMaxFrameBytes);
  const size_t bytes = write_dispatch(block.at(0));
  int damaged = 0;
  for (size_t bit = 0; bit < bytes * 8; ++bit) {
    block.at(0)[bit / 8] ^= std::byte(1 << bit % 8);
    FrameView view;
    const Refusal refusal = parse_frame({block.at(0), bytes}, kLimits, &view);
    ASSERT_TRUE(refusal == Refusal::kDamaged || refusal == Refusal::kMalformed) << "bit " << bit;
    damaged += refusal == Refusal::kDamaged;
    block.at(0)[bit / 8] ^= std::byte(1 << bit % 8);
  }
  EXPECT_GT(damaged, static_cast<int>(bytes * 7));  // all but sizes and kinds
}

TEST(Frame, EveryTruncationIsRefused) {
  AlignedBlock block(1, kMaxFrameBytes);
  const size_t bytes = write_dispatch(block.at(0));
  FrameView view;
  for (size_t size = 0; size < bytes; ++size) {
    ASSERT_EQ(parse_frame({block.at(0), size}, kLimits, &view), Refusal::kMalformed) << size;
  }
  ASSERT_EQ(parse_frame({block.at(0), bytes + 1}, kLimits, &view), Refusal::kMalformed);
}

// Sealed with a good checksum, so that only the check of the field itself can refuse it.
TEST(Frame, IdsOutOfRangeAreRefused) {
  AlignedBlock block(1, kMaxFrameBytes);
  const auto refusal_of = [&](auto&& change, const FrameLimits& limits) {
    FrameHeader header = {.hidden = 24, .session = kSession, .row_count = 2, .entry_count = 3};
    FrameEntry entries[] = {{0, 1, 5}, {1, 2, 6}, {1, 3, 7}};
    change(header, entries);
    for (uint32_t i = 0; i < 3; ++i) put_entry(frame_index(block.at(0)), i, entries[i]);
    FrameView view;
    return parse_frame({block.at(0), seal_frame(header, block.at(0))}, limits, &view);
  };
  using Entries = FrameEntry[3];
  const auto same = [](FrameHeader&, Entries&) {};
  EXPECT_EQ(refusal_of(same, kLimits), Refusal::kNone);
  const auto expect_malformed = [&](auto&& change) {
    EXPECT_EQ(refusal_of(change, kLimits), Refusal::kMalformed);
  };
  expect_malformed([](FrameHeader&, Entries& e) { e[0].expert = 9; });
  expect_malformed([](FrameHeader&, Entries& e) { e[2].slot = 64; });
  expect_malformed([](FrameHeader&, Entries& e) { e[2].row = 2; });
  expect_malformed([](FrameHeader&, Entries& e) { e[0].row = 1; });     // row 0 without a term
  expect_malformed([](FrameHeader&, Entries& e) { e[2].row = 0; });     // rows out of order
  expect_malformed([](FrameHeader& h, Entries&) { h.row_count = 3; });  // a row without a term
  expect_malformed([](FrameHeader& h, Entries&) { h.layer = 3; });
  expect_malformed([](FrameHeader& h, Entries&) { h.frame_index = 1; });
  expect_malformed([](FrameHeader& h, Entries&) { h.dtype = DType::kBF16; });
  expect_malformed([](FrameHeader& h, Entries&) { h.hidden = 23; });
  FrameLimits other = kLimits;
  other.hidden = 25;
  EXPECT_EQ(refusal_of(same, other), Refusal::kMalformed);
}

TEST(Frame, StrangersAndStaleLivesAreToldApart) {
  AlignedBlock block(1, kMaxFrameBytes);
  const size_t bytes = write_dispatch(block.at(0));
  FrameView view;
  ASSERT_EQ(parse_frame({block.at(0), bytes}, kLimits, &view), Refusal::kNone);
  const Party self = {2, 900}, peer = {-1, 800};
  Session other = kSession;
  other.secret[15] ^= 1;
  EXPECT_EQ(check_parties(view.header, other, self, peer), Refusal::kStranger);
  other = kSession;
  other.coordinator_id = 78;
  EXPECT_EQ(check_parties(view.header, other, self, peer), Refusal::kStranger);
  EXPECT_EQ(check_parties(view.header, kSession, {3, 900}, peer), Refusal::kWrongSlot);
  EXPECT_EQ(check_parties(view.header, kSession, self, {0, 800}), Refusal::kWrongSlot);
  EXPECT_EQ(check_parties(view.header, kSession, {2, 901}, peer), Refusal::kStaleIncarnation);
  EXPECT_EQ(check_parties(view.header, kSession, self, {-1, 801}), Refusal::kStaleIncarnation);
  RefusalCounts counts;
  counts.add(Refusal::kStranger);
  counts.add(Refusal::kStranger);
  counts.add(Refusal::kDamaged);
  EXPECT_EQ(counts.of(Refusal::kStranger), 2u);
  EXPECT_EQ(counts.total(), 3u);
  EXPECT_STREQ(refusal_name(Refusal::kStaleIncarnation), "stale_incarnation");
}

TEST(Frame, RandomBytesNeverPass) {
  const uint64_t seed = tests::test_seed();
  SCOPED_TRACE(tests::replay_note("frame_test", seed));
  std::mt19937_64 random(seed);
  AlignedBlock block(1, kMaxFrameBytes);
  const size_t good = write_dispatch(block.at(0));
  const std::vector<std::byte> original(block.at(0), block.at(0) + good);
  for (int round = 0; round < tests::scaled(20000, 2000); ++round) {
    std::vector<std::byte> bytes = original;
    for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      bytes[random() % std::min<size_t>(bytes.size(), 192)] = std::byte(random());
    }
    bytes.resize(random() % (bytes.size() + 64));
    FrameView view;
    if (bytes == original) continue;
    ASSERT_NE(parse_frame(bytes, kLimits, &view), Refusal::kNone);
  }
}

}  // namespace
}  // namespace brigade::expert_parallel
