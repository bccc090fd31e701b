#include "runtime/cluster/membership.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/cluster/membership_bed.h"
#include "tests/support/test_env.h"

namespace brigade::runtime {
namespace {

TEST(Membership, WithoutWorkersTheCoordinatorHoldsEverything) {
  Cluster cluster({.moe_layers = 2, .experts = 4, .expected_workers = 0});
  cluster.send(JoinDeadlinePassed{});
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.count(kCoordinator, 0), 4);
  EXPECT_EQ(cluster.count(kCoordinator, 1), 4);
}

TEST(Membership, ExpertsAreHandedOutWhenAllExpectedWorkersAreThere) {
  Cluster cluster({.moe_layers = 1, .experts = 5, .expected_workers = 3});
  cluster.join("a");
  cluster.join("b");
  EXPECT_FALSE(cluster.membership_.started());
  cluster.join("c");
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.count(0) + cluster.count(1) + cluster.count(2), 5);
  for (Rank rank : {0, 1, 2}) EXPECT_GE(cluster.count(rank), 1);
  EXPECT_EQ(cluster.count(kCoordinator), 0);
}

TEST(Membership, SharesAreEvenOverAllLayersTogether) {
  Cluster cluster({.moe_layers = 7, .experts = 10, .expected_workers = 7});
  for (const char* id : {"a", "b", "c", "d", "e", "f", "g"}) cluster.join(id);
  cluster.finish_all_loads();
  for (Rank rank = 0; rank < 7; ++rank) {
    int held = 0;
    for (int layer = 0; layer < 7; ++layer) held += cluster.count(rank, layer);
    EXPECT_EQ(held, 10) << "rank " << rank;
  }
}

// vllm-project/vllm issue 39942: one dead peer blocked all others for ever.
TEST(Membership, ALostWorkersExpertsAreParkedThenLoadedBySurvivors) {
  Cluster cluster({.moe_layers = 2, .experts = 6, .expected_workers = 3});
  for (const char* id : {"a", "b", "c"}) cluster.join(id);
  cluster.finish_all_loads();
  cluster.lose(1);
  EXPECT_EQ(cluster.parked_.size(), 4u);  // two experts in each of two layers
  EXPECT_TRUE(cluster.masked_.contains(1));
  cluster.finish_all_loads();
  EXPECT_TRUE(cluster.parked_.empty());
  EXPECT_EQ(cluster.count(0), 3);
  EXPECT_EQ(cluster.count(2), 3);
  cluster.join("b");  // comes back to its slot
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.membership_.workers().size(), 3u);
  for (Rank rank : {0, 1, 2}) EXPECT_EQ(cluster.count(rank), 2);
}

TEST(Membership, WhenAllWorkersAreLostTheCoordinatorTakesOver) {
  Cluster cluster({.moe_layers = 1, .experts = 4, .expected_workers = 2});
  cluster.join("a");
  cluster.join("b");
  cluster.finish_all_loads();
  cluster.lose(0);
  cluster.lose(1);
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.count(kCoordinator), 4);
  EXPECT_TRUE(cluster.parked_.empty());
  cluster.join("a");
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.count(0), 4);
  EXPECT_EQ(cluster.count(kCoordinator), 0);
  EXPECT_TRUE(cluster.held_[kCoordinator].empty());
}

TEST(Membership, OldIncarnationsAreIgnored) {
  Cluster cluster({.moe_layers = 1, .experts = 2, .expected_workers = 1});
  cluster.join("a");
  cluster.finish_all_loads();
  const uint64_t old = cluster.incarnation(0);
  cluster.join("a");  // a new process took the slot: the old one is masked
  cluster.finish_all_loads();
  const int publishes = cluster.publishes_;
  cluster.send(WorkerSuspected{0, old, Evidence::kHeartbeatMissed, ""});
  cluster.send(ExpertsLoaded{0, old, {{0, 0}}});
  EXPECT_EQ(cluster.publishes_, publishes);
  EXPECT_EQ(cluster.count(0), 2);
}

TEST(Membership, ALeavingWorkerIsDismissedWhenItsExpertsLiveElsewhere) {
  Cluster cluster({.moe_layers = 1, .experts = 4, .expected_workers = 2});
  cluster.join("a");
  cluster.join("b");
  cluster.finish_all_loads();
  cluster.send(WorkerLeaving{0, cluster.incarnation(0)});
  EXPECT_TRUE(cluster.dismissed_.empty());
  EXPECT_EQ(cluster.count(0), 2);  // still in use
  EXPECT_TRUE(cluster.parked_.empty());
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.dismissed_, std::vector<Rank>{0});
  EXPECT_EQ(cluster.count(1), 4);
}

TEST(Membership, AWorkerLostWhileLoadingIsReplaced) {
  Cluster cluster({.moe_layers = 1, .experts = 4, .expected_workers = 2});
  cluster.join("a");
  cluster.join("b");
  cluster.finish_loads(0);
  cluster.lose(1);  // never finished
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.count(0), 4);
}

TEST(Membership, ALoadThatIsNoLongerWantedIsReleased) {
  Cluster cluster({.moe_layers = 1, .experts = 4, .expected_workers = 1});
  cluster.join("a");
  cluster.join("b");  // takes half of what a has been asked to load
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.held_[0].size(), 2u);
  EXPECT_EQ(cluster.held_[1].size(), 2u);
}

TEST(Membership, ALostWorkersSlotIsGivenAwayWhenAllWereTaken) {
  Cluster cluster({.moe_layers = 1, .experts = 2, .expected_workers = 1, .max_ranks = 1});
  cluster.join("a");
  cluster.finish_all_loads();
  cluster.lose(0);
  cluster.join("b");
  EXPECT_EQ(cluster.membership_.workers()[0].worker_id, "b");
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.count(0), 2);
}

// Two small ones hold what they can, evenly over the layers; the rest is shared by the others.
TEST(Membership, MemoryBoundsAShare) {
  Cluster cluster({.moe_layers = 4, .experts = 8, .expected_workers = 4});
  cluster.limits_ = {{"a", 3}, {"b", 5}};
  for (const char* id : {"a", "b", "c", "d"}) cluster.join(id);
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.total(0), 3);
  EXPECT_EQ(cluster.total(1), 5);
  EXPECT_EQ(cluster.total(2), 12);
  EXPECT_EQ(cluster.total(3), 12);
  for (int layer = 0; layer < 4; ++layer) {
    EXPECT_LE(cluster.count(0, layer), 1);
    EXPECT_LE(cluster.count(1, layer), 2);
    EXPECT_GE(cluster.count(2, layer), 2);
  }
  EXPECT_EQ(cluster.total(kCoordinator), 0);
}

TEST(Membership, WhatNoWorkerHasRoomForTheCoordinatorHolds) {
  Cluster cluster({.moe_layers = 2, .experts = 4, .expected_workers = 2});
  cluster.limits_ = {{"a", 3}, {"b", 0}};
  cluster.join("a");
  cluster.join("b");
  cluster.finish_all_loads();
  EXPECT_TRUE(cluster.parked_.empty());
  EXPECT_EQ(cluster.total(0), 3);
  EXPECT_EQ(cluster.total(1), 0);
  EXPECT_EQ(cluster.total(kCoordinator), 5);
  cluster.join("c");
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.total(0) + cluster.total(2), 8);
  EXPECT_EQ(cluster.total(kCoordinator), 0);
  cluster.lose(2);
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.total(0), 3);
  EXPECT_EQ(cluster.total(kCoordinator), 5);
}

TEST(Membership, AWorkerThatFailedToLoadIsAskedForNothingMore) {
  Cluster cluster({.moe_layers = 2, .experts = 4, .expected_workers = 2});
  cluster.join("a");
  cluster.join("b");
  cluster.finish_loads(0);
  cluster.fail_loads(1);
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.total(0), 8);
  EXPECT_TRUE(cluster.held_[1].empty());
  EXPECT_EQ(cluster.membership_.active_workers(), 2);
  cluster.lose(0);  // even now
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.total(kCoordinator), 8);
  cluster.join("b");  // another process: another try
  cluster.finish_all_loads();
  EXPECT_EQ(cluster.total(1), 8);
}

// One that has experts keeps them.
TEST(Membership, AFailedLoadCostsNoExpertThatIsThere) {
  Cluster cluster({.moe_layers = 2, .experts = 6, .expected_workers = 3});
  for (const char* id : {"a", "b", "c"}) cluster.join(id);
  cluster.finish_all_loads();
  cluster.lose(2);
  cluster.fail_loads(0);
  cluster.finish_all_loads();
  EXPECT_TRUE(cluster.parked_.empty());
  EXPECT_EQ(cluster.total(0), 4);
  EXPECT_EQ(cluster.total(1), 8);
}

TEST(Membership, SaysWhenNoSlotIsFreeAndWhenAnExpertDoesNotExist) {
  Membership membership({.moe_layers = 1, .experts = 2, .expected_workers = 1, .max_ranks = 1});
  ASSERT_TRUE(membership.handle(WorkerJoined{"a", 1}).ok());
  EXPECT_EQ(membership.handle(WorkerJoined{"b", 1}).status().code(),
            absl::StatusCode::kResourceExhausted);
  const auto unknown = membership.handle(ExpertsLoaded{0, 1, {{0, 2}}});
  EXPECT_THAT(std::string(unknown.status().message()),
              ::testing::HasSubstr("expert 2 of MoE layer 0"));
}

// Random histories: whatever happens, once events stop and loads finish every expert has one usable
// holder, shares are even, and nothing was ever published that a lost or unloaded rank would serve.
TEST(Membership, RandomHistoriesEndCoveredAndEven) {
  const uint64_t seed = tests::test_seed();
  SCOPED_TRACE(tests::replay_note("membership_test", seed));
  std::mt19937_64 random(seed);
  int losses = 0, rejoins = 0;
  for (int history = 0; history < tests::scaled(2000, 200); ++history) {
    const int ids = 1 + random() % 5, experts = 1 + random() % 9;
    Cluster cluster({.moe_layers = 1 + int(random() % 3),
                     .experts = experts,
                     .expected_workers = int(random() % 4)});
    for (int event = 0; event < 30; ++event) {
      const int slots = static_cast<int>(cluster.membership_.workers().size());
      const Rank rank = slots > 0 ? random() % slots : 0;
      switch (random() % 6) {
        case 0:
        case 1:
          cluster.join(std::string(1, char('a' + random() % ids)));
          ++rejoins;
          break;
        case 2:
          if (slots > 0) {
            cluster.lose(rank);
            ++losses;
          }
          break;
        case 3:
          cluster.finish_loads(slots > 0 && random() % 4 ? rank : kCoordinator);
          break;
        case 4:
          if (slots > 0 && random() % 4 == 0)
            cluster.send(WorkerLeaving{rank, cluster.incarnation(rank)});
          break;
        case 5:
          if (random() % 4 == 0) cluster.send(JoinDeadlinePassed{});
          break;
      }
      if (HasFailure()) return;
    }
    cluster.send(JoinDeadlinePassed{});
    cluster.finish_all_loads();
    ASSERT_TRUE(cluster.placement_.has_value());
    EXPECT_TRUE(cluster.parked_.empty());
    // Nobody keeps bytes of experts that nobody asks for.
    for (const auto& [rank, keys] : cluster.held_) {
      for (const ExpertKey& key : keys) {
        EXPECT_TRUE(cluster.placement_->holds(rank, key.moe_layer, key.expert))
            << "rank " << rank << " still holds expert " << key.expert;
      }
    }
    int least = experts, most = 0, total = 0, active = 0;
    for (Rank rank = 0; rank < static_cast<Rank>(cluster.membership_.workers().size()); ++rank) {
      if (cluster.membership_.workers()[rank].state != Membership::WorkerState::kActive) continue;
      ++active;
      least = std::min(least, cluster.count(rank));
      most = std::max(most, cluster.count(rank));
      total += cluster.count(rank);
    }
    if (active == 0) {
      EXPECT_EQ(cluster.count(kCoordinator), experts);
    } else {
      EXPECT_EQ(total, experts);
      EXPECT_LE(most - least, 1);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(losses, 100);
  EXPECT_GT(rejoins, 100);
}

// The same with workers of little memory whose loads fail now and then: nobody is told to hold more
// than its memory takes, and the coordinator ends with just what fits nowhere else.
TEST(Membership, RandomHistoriesKeepToTheMemoryOfEach) {
  const uint64_t seed = tests::test_seed();
  SCOPED_TRACE(tests::replay_note("membership_test", seed));
  std::mt19937_64 random(seed);
  int short_ones = 0, failures = 0;
  for (int history = 0; history < tests::scaled(1000, 100); ++history) {
    const int experts = 1 + random() % 6, layers = 1 + random() % 3;
    Cluster cluster(
        {.moe_layers = layers, .experts = experts, .expected_workers = int(random() % 3)});
    const std::string ids = "abcd";
    for (const char id : ids) {
      if (random() % 4) cluster.limits_[std::string(1, id)] = random() % (layers * experts + 1);
    }
    bool failed = false;
    for (int event = 0; event < 30; ++event) {
      const int slots = static_cast<int>(cluster.membership_.workers().size());
      const Rank rank = slots > 0 ? random() % slots : kCoordinator;
      switch (random() % 6) {
        case 0:
        case 1:
          cluster.join(std::string(1, ids[random() % ids.size()]));
          break;
        case 2:
          if (slots > 0 && random() % 2) cluster.lose(rank);
          break;
        case 3:
          cluster.finish_loads(random() % 4 ? rank : kCoordinator);
          break;
        case 4:
          if (slots > 0 && random() % 4 == 0)
            cluster.send(WorkerLeaving{rank, cluster.incarnation(rank)});
          break;
        case 5:
          if (slots > 0 && random() % 8 == 0 && !cluster.loading_[rank].empty()) {
            cluster.fail_loads(rank);
            failed = true;
            ++failures;
          }
          break;
      }
      if (HasFailure()) return;
    }
    cluster.send(JoinDeadlinePassed{});
    cluster.finish_all_loads();
    EXPECT_TRUE(cluster.parked_.empty());
    int64_t room = 0;
    for (const Membership::Worker& worker : cluster.membership_.workers()) {
      if (worker.state != Membership::WorkerState::kActive) continue;
      room += std::min<int64_t>(worker.max_experts, layers * experts);
    }
    const int64_t left = std::max<int64_t>(0, layers * experts - room);
    if (failed) {
      EXPECT_GE(cluster.total(kCoordinator), left);
    } else {
      EXPECT_EQ(cluster.total(kCoordinator), left);
    }
    EXPECT_EQ(cluster.held_[kCoordinator].size(), size_t(cluster.total(kCoordinator)));
    short_ones += left > 0;
    if (HasFailure()) return;
  }
  EXPECT_GT(short_ones, 10);
  EXPECT_GT(failures, 10);
}

}  // namespace
}  // namespace brigade::runtime
