// A worker is lost while its rows are under way and requests run: terms with a replica are computed
// there, sequences without one are parked until a survivor has loaded their experts, the worker
// comes back. No request fails, and tokens and log-probability bits are those of one process.
#include <atomic>
#include <cstdio>
#include <thread>

#include "absl/time/clock.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
#include "tests/runtime/engine/identity_bed.h"
#include "tests/support/engine_cluster.h"
#include "tests/support/fault_transport.h"
#include "tests/support/random_placement.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using expert_parallel::PeerId;
using expert_parallel::Placement;
using expert_parallel::Rank;
using kernels::DType;

// Lets so many questions of a worker arrive, then none: its rows are outstanding when it dies.
struct Cut {
  std::atomic<int> pass{1 << 30};
  std::atomic<bool> reached{false};
  Fault decide() {
    if (pass.fetch_sub(1) > 0) return {};
    reached = true;
    return {.drop = true};
  }
};

// Every other replica list loses the victim; where it was alone, `heir` takes over.
Placement without(const Placement& placement, Rank victim, Rank heir) {
  std::vector<std::vector<std::vector<Rank>>> replicas;
  for (int layer = 0; layer < placement.moe_layers(); ++layer) {
    replicas.emplace_back();
    for (int expert = 0; expert < placement.experts(); ++expert) {
      const auto ranks = placement.replicas(layer, expert);
      std::vector<Rank> kept(ranks.begin(), ranks.end());
      std::erase(kept, victim);
      if (kept.empty()) kept.push_back(heir);
      replicas.back().push_back(std::move(kept));
    }
  }
  return *Placement::create(placement.version() + 1, replicas, placement.num_ranks());
}

std::vector<std::string> checkpoints() {
#ifdef __SANITIZE_THREAD__
  // Twenty times slower there, and the same threads.
  return {golden_checkpoint("mixtral_many_experts")};
#else
  return {demo_checkpoint(), golden_checkpoint("mixtral_many_experts")};
#endif
}

struct Witness {
  int losses = 0;
  uint64_t replayed_rows = 0, parked_rows = 0;
  int64_t parkings = 0;
};

constexpr int kMostLosses = 4;  // of one run

// Plays the control plane beside a running engine until that has answered everything.
class Losses {
 public:
  Losses(EngineCluster& cluster, const Placement& placement, std::vector<Cut>& cuts, uint64_t seed)
      : cluster_(cluster), placement_(placement), cuts_(cuts), random_(seed) {}
  void run() {
    while (!done && losses < kMostLosses) {
      const auto victim = static_cast<Rank>(random_() % cuts_.size());
      Cut& cut = cuts_[static_cast<size_t>(victim)];
      cut.pass = static_cast<int>(random_() % 30);
      while (!cut.reached) {
        if (done) return;
        absl::SleepFor(absl::Milliseconds(1));
      }
      // The engine waits for this worker now, so nothing can have ended.
      lose(victim);
      come_back(victim);
    }
  }
  std::atomic<bool> done{false};
  int losses = 0;

 private:
  void lose(Rank victim) {
    const uint64_t parked = cluster_.counts().parked_rows;
    cluster_.kill_worker(victim);
    ++losses;
    ASSERT_TRUE(cluster_.declare_lost(victim, absl::Now() + absl::Seconds(20)));
    cluster_.publish(placement_);
    // Most times somebody is parked; where everything needed had a replica nobody is.
    const absl::Time limit = absl::Now() + absl::Milliseconds(20);
    while (cluster_.counts().parked_rows == parked && absl::Now() < limit && !done) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    const auto heir = static_cast<Rank>((static_cast<size_t>(victim) + 1) % cuts_.size());
    const Placement survivors = without(placement_, victim, heir);
    cluster_.load_missing(heir, survivors);
    cluster_.publish(survivors);
  }
  void come_back(Rank victim) {
    Cut& cut = cuts_[static_cast<size_t>(victim)];
    cut.pass = 1 << 30;
    cut.reached = false;
    cluster_.start_worker(victim, placement_);
    cluster_.publish(placement_);
  }

  EngineCluster& cluster_;
  const Placement placement_;
  std::vector<Cut>& cuts_;
  std::mt19937_64 random_;
};

void run_with_losses(const IdentitySubject& subject, const std::vector<uint64_t>& expected,
                     const Circumstances& circumstances, std::mt19937_64& random,
                     Witness* witness) {
  const int workers = 2 + static_cast<int>(random() % 2);
  std::vector<Cut> cuts(static_cast<size_t>(workers));
  auto hub = expert_parallel::make_loopback_hub();
  EngineCluster cluster(
      {.checkpoint = subject.folder(),
       .workers = workers,
       .microbatches = circumstances.microbatches,
       .max_rows = circumstances.max_rows,
       .wire_dtype = circumstances.wire_dtype,
       .make_transport = [&](Rank rank) {
         auto made =
             std::make_unique<FaultTransport>(expert_parallel::make_loopback_transport(hub), 1);
         if (rank != expert_parallel::kCoordinator) {
           Cut* cut = &cuts[static_cast<size_t>(rank)];
           made->decide = [cut](PeerId, std::span<const std::byte>) { return cut->decide(); };
         }
         return made;
       }});
  const Placement placement = random_placement(cluster.geometry(), workers, random);
  SCOPED_TRACE(testing::Message() << workers << " workers, " << circumstances.describe());
  cluster.start_all(placement);
  Losses losses(cluster, placement, cuts, random());
  ClusterCounts counts;
  // From the end of the warm-up step on.
  std::thread control;
  const auto outcome = subject.run(
      circumstances, {.exchange = cluster.exchange_factory(),
                      .load_experts = false,
                      .once_ready = [&] { control = std::thread([&] { losses.run(); }); },
                      .before_the_end =
                          [&] {
                            losses.done = true;
                            control.join();
                            counts = cluster.counts();
                          }});
  losses.done = true;
  if (control.joinable()) control.join();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(count_differences(outcome->fingerprints, expected), 0);
  EXPECT_EQ(outcome->status.requests_failed, 0);
  EXPECT_EQ(outcome->status.nonfinite_rows, 0);
  witness->losses += losses.losses;
  witness->replayed_rows += counts.replayed_rows;
  witness->parked_rows += counts.parked_rows;
  witness->parkings += outcome->status.parkings;
}

TEST(ClusterLoss, NoRequestFailsAndNoBitChanges) {
  const uint64_t seed = test_seed(61);
  SCOPED_TRACE(replay_note("cluster_loss_test", seed));
  std::mt19937_64 random(seed);
  Witness witness;
  int run = 0;
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    for (const std::string& folder : checkpoints()) {
      const auto subject = IdentitySubject::open(folder);
      ASSERT_TRUE(subject.ok()) << subject.status();
      Circumstances plain = subject->plain();
      plain.wire_dtype = wire;
      const auto expected = subject->run(plain);
      ASSERT_TRUE(expected.ok()) << expected.status();
      for (int i = 0; i < scaled(20, 2); ++i, ++run) {
        Circumstances circumstances =
            subject->random(random, /*wide=*/false, /*crowded=*/run % 3 == 1);
        circumstances.microbatches = 1 + run % 3;
        circumstances.wire_dtype = wire;
        circumstances.together = true;
        run_with_losses(*subject, expected->fingerprints, circumstances, random, &witness);
        if (HasFatalFailure()) return;
      }
    }
  }
  std::printf("%d runs, %d workers lost, %llu rows replayed, %llu parked, %lld parkings\n", run,
              witness.losses, static_cast<unsigned long long>(witness.replayed_rows),
              static_cast<unsigned long long>(witness.parked_rows),
              static_cast<long long>(witness.parkings));
  EXPECT_GE(witness.losses, run);
  EXPECT_GT(witness.replayed_rows, 0u);
  EXPECT_GT(witness.parked_rows, 0u);
  EXPECT_GT(witness.parkings, 0);
}

}  // namespace
}  // namespace brigade::tests
