#include "runtime/scheduler/kv_blocks.h"

#include <random>

#include "gtest/gtest.h"
#include "tests/support/test_env.h"

namespace brigade::runtime {
namespace {

std::vector<int32_t> run_of(int32_t first, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

// Holds blocks for `tokens` and commits every full one.
std::vector<int> fill(KvBlocks* blocks, const PrefixSalt& salt,
                      const std::vector<int32_t>& tokens) {
  std::vector<int> held;
  PrefixChain chain = 0;
  const int size = blocks->block_size();
  for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(size)) {
    held.push_back(blocks->allocate());
    if (at + static_cast<size_t>(size) > tokens.size()) break;
    chain =
        blocks->commit(held.back(), chain, salt, {tokens.data() + at, static_cast<size_t>(size)});
  }
  return held;
}

void release(KvBlocks* blocks, const std::vector<int>& held) {
  for (auto at = held.rbegin(); at != held.rend(); ++at) blocks->release(*at);
}

int found_blocks(KvBlocks* blocks, const PrefixSalt& salt, const std::vector<int32_t>& tokens) {
  std::vector<int> found;
  blocks->match(salt, tokens, 1000, &found);
  release(blocks, found);
  return static_cast<int>(found.size());
}

TEST(KvBlocks, CountsEveryBlockOnce) {
  KvBlocks blocks(4, 16);
  const int a = blocks.allocate(), b = blocks.allocate();
  blocks.hold(a);
  EXPECT_EQ(blocks.in_use(), 2);
  EXPECT_FALSE(blocks.writable(a));
  blocks.release(a);
  EXPECT_TRUE(blocks.writable(a));
  EXPECT_EQ(blocks.in_use(), 2);
  blocks.release(a);
  blocks.release(b);
  EXPECT_EQ(blocks.free(), 4);
  EXPECT_TRUE(blocks.consistent());
}

TEST(KvBlocks, AllocateSaysWhenNothingIsLeft) {
  KvBlocks blocks(2, 16);
  EXPECT_GE(blocks.allocate(), 0);
  EXPECT_GE(blocks.allocate(), 0);
  EXPECT_EQ(blocks.allocate(), -1);
}

TEST(KvBlocksDeathTest, ReleasingTwiceIsABrokenInvariant) {
  KvBlocks blocks(2, 16);
  const int block = blocks.allocate();
  blocks.release(block);
  EXPECT_DEATH(blocks.release(block), "broken invariant");
  EXPECT_DEATH(blocks.hold(block), "broken invariant");
}

TEST(KvBlocks, FindsTheLongestCommittedPrefix) {
  KvBlocks blocks(10, 4);
  const auto tokens = run_of(0, 14);  // three full blocks and a half
  const auto held = fill(&blocks, nullptr, tokens);
  release(&blocks, held);
  EXPECT_EQ(blocks.cached(), 3);
  EXPECT_EQ(blocks.in_use(), 0);
  EXPECT_EQ(found_blocks(&blocks, nullptr, tokens), 3);
  auto other = tokens;
  other[5] = 99;
  EXPECT_EQ(found_blocks(&blocks, nullptr, other), 1);
  std::vector<int> found;
  const PrefixChain chain = blocks.match(nullptr, tokens, 2, &found);
  EXPECT_EQ(found, (std::vector<int>{held[0], held[1]}));
  EXPECT_NE(chain, 0u);
  EXPECT_EQ(blocks.in_use(), 2);
  EXPECT_EQ(blocks.cached(), 1);
  release(&blocks, found);
}

// The same block content after another prefix is another prefix.
TEST(KvBlocks, AMatchNeedsTheWholePrefix) {
  KvBlocks blocks(10, 4);
  release(&blocks, fill(&blocks, nullptr, {1, 1, 1, 1, 7, 7, 7, 7}));
  EXPECT_EQ(found_blocks(&blocks, nullptr, {2, 2, 2, 2, 7, 7, 7, 7}), 0);
  EXPECT_EQ(found_blocks(&blocks, nullptr, {7, 7, 7, 7}), 0);
}

// With a hash that always collides only the comparison of token ids and salts is left.
TEST(KvBlocks, CollidingHashesNeverShare) {
  KvBlocks blocks(30, 4, /*hash_mask=*/0);
  const auto salt = std::make_shared<const std::string>("tenant");
  const auto a = run_of(0, 12), b = run_of(100, 12);
  release(&blocks, fill(&blocks, nullptr, a));
  release(&blocks, fill(&blocks, nullptr, b));
  EXPECT_EQ(found_blocks(&blocks, nullptr, a), 3);
  EXPECT_EQ(found_blocks(&blocks, nullptr, b), 3);
  EXPECT_EQ(found_blocks(&blocks, nullptr, run_of(50, 12)), 0);
  EXPECT_EQ(found_blocks(&blocks, salt, a), 0);
  EXPECT_TRUE(blocks.consistent());
}

TEST(KvBlocks, SaltsKeepPrefixesApart) {
  KvBlocks blocks(10, 4);
  const auto red = std::make_shared<const std::string>("red");
  const auto red_again = std::make_shared<const std::string>("red");
  const auto empty = std::make_shared<const std::string>("");
  const auto tokens = run_of(0, 8);
  release(&blocks, fill(&blocks, red, tokens));
  EXPECT_EQ(found_blocks(&blocks, red_again, tokens), 2);
  EXPECT_EQ(found_blocks(&blocks, nullptr, tokens), 0);
  release(&blocks, fill(&blocks, nullptr, tokens));
  EXPECT_EQ(found_blocks(&blocks, empty, tokens), 2);
  EXPECT_EQ(blocks.cached(), 4);
}

TEST(KvBlocks, ASecondCopyOfAPrefixStaysPrivate) {
  KvBlocks blocks(10, 4);
  const auto tokens = run_of(0, 8);
  const auto first = fill(&blocks, nullptr, tokens), second = fill(&blocks, nullptr, tokens);
  release(&blocks, second);
  EXPECT_EQ(blocks.cached(), 0);
  EXPECT_EQ(blocks.free(), 8);
  release(&blocks, first);
  EXPECT_EQ(blocks.cached(), 2);
}

TEST(KvBlocks, EvictsTheLeastRecentlyUsedFromItsEnd) {
  KvBlocks blocks(4, 4);
  const auto a = run_of(0, 8), b = run_of(100, 8);
  release(&blocks, fill(&blocks, nullptr, a));
  release(&blocks, fill(&blocks, nullptr, b));
  EXPECT_EQ(found_blocks(&blocks, nullptr, a), 2);  // a is now the more recent one
  EXPECT_EQ(blocks.free(), 0);
  const int taken = blocks.allocate();
  EXPECT_EQ(blocks.evictions(), 1);
  EXPECT_EQ(found_blocks(&blocks, nullptr, b), 1);
  EXPECT_EQ(found_blocks(&blocks, nullptr, a), 2);
  EXPECT_TRUE(blocks.consistent());
  blocks.release(taken);
}

TEST(KvBlocks, ClearForgetsPrefixesButNotHolders) {
  KvBlocks blocks(4, 4);
  const auto tokens = run_of(0, 8);
  const auto held = fill(&blocks, nullptr, tokens);
  blocks.clear_prefixes();
  EXPECT_EQ(found_blocks(&blocks, nullptr, tokens), 0);
  EXPECT_EQ(blocks.in_use(), 2);
  release(&blocks, held);
  EXPECT_EQ(blocks.free(), 4);
}

// Random holds, releases, commits and matches against plain counters.
TEST(KvBlocks, RandomHistoriesKeepTheAccounts) {
  const uint64_t seed = tests::test_seed(11);
  SCOPED_TRACE(tests::replay_note("kv_blocks_test", seed));
  std::mt19937_64 random(seed);
  for (int history = 0; history < tests::scaled(300, 20); ++history) {
    KvBlocks blocks(1 + static_cast<int>(random() % 12), 2, random() % 2 ? ~uint64_t{0} : 1);
    std::vector<std::vector<int>> held;
    for (int event = 0; event < 60; ++event) {
      if (random() % 3 == 0 && !held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        release(&blocks, held.back());
        held.pop_back();
      } else {
        std::vector<int32_t> tokens;
        for (int i = 0; i < 6; ++i) tokens.push_back(static_cast<int32_t>(random() % 2));
        std::vector<int> mine;
        PrefixChain chain = blocks.match(nullptr, tokens, 3, &mine);
        while (mine.size() < 3) {
          const int block = blocks.allocate();
          if (block < 0) break;
          chain = blocks.commit(block, chain, nullptr, {tokens.data() + mine.size() * 2, 2});
          mine.push_back(block);
        }
        held.push_back(mine);
      }
      ASSERT_TRUE(blocks.consistent());
    }
    for (const auto& mine : held) release(&blocks, mine);
    ASSERT_EQ(blocks.available(), blocks.total());
    ASSERT_TRUE(blocks.consistent());
  }
}

}  // namespace
}  // namespace brigade::runtime
