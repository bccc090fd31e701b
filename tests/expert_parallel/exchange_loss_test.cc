// A worker is lost at every point of the protocol: the rows that were with it are computed
// elsewhere and not one bit changes. What nobody holds is parked, never dropped.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <thread>

#include "tests/expert_parallel/exchange_loss_bed.h"
#include "tests/expert_parallel/loss_placements.h"

namespace brigade::tests {
namespace {

using namespace expert_parallel;

// Killed after having received n frames, and after n of its answers had arrived: every n there is.
INSTANTIATE_TEST_SUITE_P(Frames, ExchangeLoss, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "device" : "host"; });

TEST_P(ExchangeLoss, KilledAtEveryFrameOfTheExchange) {
  uint64_t replayed = 0;
  for (const bool cut_answers : {false, true}) {
    for (int frames = 0; frames < 64; ++frames) {
      SCOPED_TRACE(testing::Message()
                   << (cut_answers ? "answers" : "questions") << " cut after " << frames);
      auto cluster = make_cluster(/*coordinator_holds_all=*/false);
      const Placement placement = replicated(kExperts, 1, false);
      questions_.reached = answers_.reached = false;
      questions_.pass = answers_.pass = 1 << 30;
      start_all(*cluster, placement);
      const Rows rows = random_rows(random_);
      (cut_answers ? answers_ : questions_).pass = frames;
      begin(*cluster, rows);
      bool killed = false;
      ASSERT_TRUE(finish(*cluster, [&] {
        if (!killed && (questions_.reached || answers_.reached)) {
          cluster->kill_worker(1);
          killed = true;
        }
        for (const Rank rank : cluster->take_evidence()) {
          EXPECT_EQ(rank, 1);
          cluster->declare_lost(rank);
          ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(placement)).ok());
        }
      }));
      expect_same_bits(*cluster, rows);
      EXPECT_TRUE(cluster->exchange(0).parked_rows().empty());
      if (!killed) {
        EXPECT_GT(frames, 1) << "the exchange must take several frames";
        break;  // that was past the last frame
      }
      EXPECT_GT(cluster->exchange(0).counters().replayed_rows.load(), 0u);
      replayed += cluster->exchange(0).counters().replayed_rows;
    }
  }
  EXPECT_GT(replayed, 0u);
}

// One after the other; the coordinator ends up with everything.
TEST_P(ExchangeLoss, AllWorkersOneAfterTheOther) {
  auto cluster = make_cluster(/*coordinator_holds_all=*/true);
  const Placement placement = replicated(kExperts, 1, true);
  questions_.pass = 0;
  start_all(*cluster, placement);
  const Rows rows = random_rows(random_);
  begin(*cluster, rows);
  int killed = 0;
  ASSERT_TRUE(finish(*cluster, [&] {
    if (killed == 0 && !questions_.reached) return;
    if (killed < 3) cluster->kill_worker((1 + killed++) % 3);
    for (const Rank rank : cluster->take_evidence()) {
      cluster->declare_lost(rank);
      ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(placement)).ok());
    }
  }));
  expect_same_bits(*cluster, rows);
  EXPECT_GT(cluster->exchange(0).counters().replayed_rows.load(), 0u);
}

// A worker that hangs is declared lost, its rows go elsewhere, and it comes back: its late answers
// are of an old life. Then it serves again.
TEST_P(ExchangeLoss, AFalseAlarmChangesNothingAndTheWorkerRejoins) {
  auto cluster = make_cluster(/*coordinator_holds_all=*/false);
  const Placement placement = replicated(kExperts, 1, false);
  answers_.pass = 1;
  start_all(*cluster, placement);
  Rows rows = random_rows(random_);
  begin(*cluster, rows);
  bool declared = false;
  ASSERT_TRUE(finish(*cluster, [&] {
    // The others answer, and rank 1 alone is overdue.
    if (declared || !answers_.reached || cluster->exchange(0).waiting_for() != std::vector<Rank>{1})
      return;
    declared = true;
    cluster->declare_lost(1);
    ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(placement)).ok());
  }));
  expect_same_bits(*cluster, rows);
  ASSERT_TRUE(declared);
  const uint64_t served = cluster->server(1)->counters().rows;
  answers_.pass = 1 << 30;
  cluster->rejoin_worker(1);
  ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(placement)).ok());
  rows = random_rows(random_);
  begin(*cluster, rows);
  ASSERT_TRUE(finish(*cluster));
  expect_same_bits(*cluster, rows);
  EXPECT_GT(cluster->server(1)->counters().rows.load(), served);
}

TEST_P(ExchangeLoss, RowsOfExpertsThatNobodyHoldsAreParkedAndTheOthersGoOn) {
  auto cluster = make_cluster(/*coordinator_holds_all=*/false);
  const Placement placement = single_homes(kExperts, 1);
  questions_.pass = 1;
  start_all(*cluster, placement);
  const Rows rows = random_rows(random_);
  begin(*cluster, rows);
  ASSERT_TRUE(finish(*cluster, [&] {
    if (questions_.reached) cluster->kill_worker(1);
    for (const Rank rank : cluster->take_evidence()) {
      cluster->declare_lost(rank);
      ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(placement)).ok());
    }
  }));
  const auto expected = cluster->reference(0, rows.x, rows.experts);
  const auto answers = cluster->answers_of(cluster->exchange(0), kRows);
  std::vector<int32_t> incomplete;
  for (int term = 0; term < kRows * kTopK; ++term) {
    const uint8_t* answer = &answers[size_t(term) * kHidden * sizeof(float)];
    if (std::memcmp(answer, &expected[size_t(term) * kHidden * sizeof(float)],
                    kHidden * sizeof(float)) == 0)
      continue;
    EXPECT_EQ(rows.experts[term] % 3, 1) << "an answer of a live rank is wrong";
    float first;
    std::memcpy(&first, answer, sizeof(first));
    EXPECT_TRUE(std::isnan(first)) << "a missing answer must be loud";
    if (incomplete.empty() || incomplete.back() != term / kTopK) incomplete.push_back(term / kTopK);
  }
  const auto parked = cluster->exchange(0).parked_rows();
  EXPECT_EQ(std::vector<int32_t>(parked.begin(), parked.end()), incomplete);
  EXPECT_GT(incomplete.size(), 0u);
  // The expert comes back: the same rows again, whole.
  questions_.pass = 1 << 30;
  cluster->start_worker(1, placement);
  ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(placement)).ok());
  begin(*cluster, rows);
  ASSERT_TRUE(finish(*cluster));
  expect_same_bits(*cluster, rows);
  EXPECT_TRUE(cluster->exchange(0).parked_rows().empty());
}

TEST_P(ExchangeLoss, ALayerMayWaitForAHolderInstead) {
  auto cluster = make_cluster(/*coordinator_holds_all=*/false, HomelessRows::kWait);
  const Placement placement = single_homes(kExperts, 1);
  questions_.pass = 0;
  start_all(*cluster, placement);
  const Rows rows = random_rows(random_);
  begin(*cluster, rows);
  cluster->declare_lost(1);
  ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(placement)).ok());
  EXPECT_FALSE(finish(*cluster, nullptr, absl::Milliseconds(100)));
  questions_.pass = 1 << 30;
  cluster->start_worker(1, placement);
  ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(placement)).ok());
  ASSERT_TRUE(finish(*cluster));
  expect_same_bits(*cluster, rows);
  EXPECT_GT(cluster->exchange(0).counters().replayed_rows.load(), 0u);
}

// The placement says rank 1 and rank 1 does not have it: it says so, and a better view heals it.
TEST_P(ExchangeLoss, DeclinedTermsGoElsewhereWithTheNextView) {
  auto cluster = make_cluster(/*coordinator_holds_all=*/false);
  start_all(*cluster, single_homes(kExperts, 1));
  ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(misplaced(kExperts, 2))).ok());
  const Rows rows = random_rows(random_);
  begin(*cluster, rows);
  ASSERT_TRUE(finish(*cluster, [&] {
    if (cluster->exchange(0).declined_terms() == 0) return;
    ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(single_homes(kExperts, 3))).ok());
  }));
  expect_same_bits(*cluster, rows);
  EXPECT_GT(cluster->server(1)->counters().declined_terms.load(), 0u);
}

// Terms are under way to rank 1 when the view moves their experts to rank 0. Rank 1 no longer has
// them when it reads the frames: what it declines goes to rank 0 at once, without another view.
TEST_P(ExchangeLoss, TermsDeclinedUnderAnOlderViewGoOutAgainAtOnce) {
  auto cluster = make_cluster(/*coordinator_holds_all=*/false);
  start_all(*cluster, single_homes(kExperts, 1));
  ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(misplaced(kExperts, 2))).ok());
  std::promise<void> held, let_go;
  std::thread holder([&] {
    const absl::Status status = cluster->server(1)->call(
        [&] {
          held.set_value();
          let_go.get_future().wait();
        },
        absl::Now() + absl::Seconds(30));
    EXPECT_TRUE(status.ok()) << status;
  });
  held.get_future().wait();
  const Rows rows = random_rows(random_);
  begin(*cluster, rows);
  const absl::Status moved =
      cluster->exchange(0).set_view(cluster->view(single_homes(kExperts, 3)));
  let_go.set_value();
  holder.join();
  ASSERT_TRUE(moved.ok()) << moved;
  ASSERT_TRUE(finish(*cluster, nullptr, absl::Seconds(20)));
  expect_same_bits(*cluster, rows);
  EXPECT_GT(cluster->exchange(0).declined_terms(), 0u);
  EXPECT_GT(cluster->exchange(0).counters().replayed_rows.load(), 0u);
  EXPECT_EQ(cluster->exchange(0).counters().declined_by_holder.load(), 0u);
}

// The view names a rank that declines: asked once, counted, and again only by another view.
TEST_P(ExchangeLoss, ARankThatDeclinesWhatTheViewGivesItIsAskedOncePerView) {
  auto cluster = make_cluster(/*coordinator_holds_all=*/false);
  start_all(*cluster, single_homes(kExperts, 1));
  const Rows rows = random_rows(random_);
  const auto terms = static_cast<uint64_t>(std::count_if(
      rows.experts.begin(), rows.experts.end(), [](int32_t expert) { return expert % 3 == 0; }));
  ExpertServer& decliner = *cluster->server(1);
  for (const uint64_t version : {2, 3}) {
    ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(misplaced(kExperts, version))).ok());
    if (version == 2) begin(*cluster, rows);
    const auto counted = [&] { return cluster->exchange(0).counters().declined_by_holder.load(); };
    const uint64_t expected = terms * (version - 1);
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    // The others answer when they get to it.
    const std::vector<Rank> only_decliner = {1};
    const auto settled = [&] {
      return counted() >= expected && cluster->exchange(0).waiting_for() == only_decliner;
    };
    while (!settled() && absl::Now() < deadline)
      EXPECT_FALSE(finish(*cluster, nullptr, absl::Milliseconds(10)));
    EXPECT_FALSE(finish(*cluster, nullptr, absl::Milliseconds(50)));
    EXPECT_EQ(counted(), expected);
    EXPECT_EQ(decliner.counters().declined_terms.load(), expected);
    EXPECT_EQ(cluster->exchange(0).waiting_for(), only_decliner);
  }
  ASSERT_TRUE(cluster->exchange(0).set_view(cluster->view(single_homes(kExperts, 4))).ok());
  ASSERT_TRUE(finish(*cluster));
  expect_same_bits(*cluster, rows);
}

TEST_P(ExchangeLoss, DamagedAnswersAreRefusedAndReplayed) {
  // In device frames the checksum covers header and index; the rows have nothing that could refuse
  // them.
  if (GetParam()) GTEST_SKIP() << "the checksum covers no rows that are apart";
  auto hub = make_loopback_hub();
  ExpertClusterOptions options = {.geometry = geometry(),
                                  .workers = 3,
                                  .max_rows = kRows,
                                  .seed = seed_,
                                  .coordinator_holds_all = false};
  std::atomic<int> damage{2};
  options.make_transport = [&](Rank rank) {
    auto transport = std::make_unique<FaultTransport>(make_loopback_transport(hub), random_());
    if (rank == kCoordinator) {
      transport->decide = [&](PeerId peer, std::span<const std::byte>) {
        return Fault{.damage = peer == 2 && damage.fetch_sub(1) > 0};
      };
    }
    return transport;
  };
  ExpertCluster cluster(on_device(options));
  const Placement placement = replicated(kExperts, 1, false);
  for (int rank = 0; rank < 3; ++rank) cluster.start_worker(rank, placement);
  ASSERT_TRUE(cluster.exchange(0).set_view(cluster.view(placement)).ok());
  const Rows rows = random_rows(random_);
  begin(cluster, rows);
  // The overdue reply is what accuses the rank.
  EXPECT_TRUE(finish(cluster, [&] {
    if (cluster.links().refusals().total() < 2 ||
        cluster.exchange(0).waiting_for() != std::vector<Rank>{1})
      return;
    cluster.declare_lost(1);
    ASSERT_TRUE(cluster.exchange(0).set_view(cluster.view(placement)).ok());
  }));
  expect_same_bits(cluster, rows);
  const RefusalCounts& refusals = cluster.links().refusals();
  EXPECT_EQ(refusals.of(Refusal::kDamaged) + refusals.of(Refusal::kMalformed), 2u);
}

}  // namespace
}  // namespace brigade::tests
