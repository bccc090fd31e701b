// Random histories of the coordinator's side and its draft workers: whatever waits, dies or lies,
// drafts continue the text they are said to.
#include <random>

#include "tests/runtime/draft_worker/remote_drafts_bed.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

TEST(RemoteDrafts, RandomHistories) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("remote_drafts_test", seed));
  RemoteDraftsCounters sum;
  for (int history = 0; history < scaled(100, 10) && !HasFatalFailure(); ++history) {
    SCOPED_TRACE(history);
    std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(history));
    const auto below = [&](int bound) {
      return static_cast<int>(random() % static_cast<uint64_t>(bound));
    };
    Bed bed;
    std::vector<std::unique_ptr<Worker>> workers(2);
    struct Live {
      std::vector<int32_t> text;
      std::unique_ptr<RemoteDrafter> drafter;
    };
    std::vector<Live> live(6);
    for (int action = 0; action < 500 && !HasFatalFailure(); ++action) {
      bed.now += absl::Milliseconds(below(20));
      auto& worker = workers[static_cast<size_t>(below(2))];
      Live& one = live[static_cast<size_t>(below(6))];
      switch (below(8)) {
        case 0:
          if (worker != nullptr && below(6) == 0) {
            worker.reset();
          } else if (worker == nullptr) {
            worker = std::make_unique<Worker>(&bed.links, "d", bed.now);
          }
          break;
        case 1:
          if (worker != nullptr) worker->hear(bed.now);
          break;
        case 2:
        case 3:
          if (worker != nullptr) worker->draft_once();
          break;
        case 4:
          if (worker != nullptr) worker->report(bed.now);
          break;
        case 5:
          bed.drafts.collect(bed.now);
          break;
        default: {
          if (one.drafter == nullptr || one.text.size() > 90) {
            one.text.assign(1 + static_cast<size_t>(below(20)), below(kVocab));
            one.drafter = bed.drafts.open(greedy(static_cast<int>(one.text.size())), one.text);
          }
          one.drafter->draft(one.text, below(7), &bed.list);
          const std::vector<int32_t> drafts = tokens_of(bed.list);
          ASSERT_EQ(drafts, greedy_drafts(one.text, static_cast<int>(drafts.size())));
          const int keep = below(static_cast<int>(drafts.size()) + 1);
          one.text.insert(one.text.end(), drafts.begin(), drafts.begin() + keep);
          one.text.push_back(below(3) == 0 ? below(kVocab) : scripted_argmax(one.text, kVocab));
          one.drafter->committed(one.text);
        }
      }
    }
    // Time heals all.
    for (auto& worker : workers) {
      if (worker == nullptr) worker = std::make_unique<Worker>(&bed.links, "d", bed.now);
    }
    for (int round = 0; round < 4; ++round) {
      bed.now += absl::Seconds(10);
      bed.drafts.collect(bed.now);
      for (Live& one : live) {
        if (one.drafter != nullptr) one.drafter->draft(one.text, 3, &bed.list);
      }
      for (auto& worker : workers) worker->work(bed.now);
    }
    bed.drafts.collect(bed.now);
    for (Live& one : live) {
      if (one.drafter == nullptr) continue;
      one.drafter->draft(one.text, 3, &bed.list);
      EXPECT_EQ(tokens_of(bed.list), greedy_drafts(one.text, 3));
    }
    const RemoteDraftsCounters counters = bed.drafts.counters();
    EXPECT_EQ(counters.bad, 0) << counters.last_fault;
    sum.matched += counters.matched;
    sum.ahead += counters.ahead;
    sum.lost += counters.lost;
    sum.reopened += counters.reopened;
    sum.dropped += counters.dropped;
  }
  EXPECT_GT(sum.matched, 0);
  EXPECT_GT(sum.ahead, 0);
  EXPECT_GT(sum.lost, 0);
  EXPECT_GT(sum.reopened, 0);
  EXPECT_GT(sum.dropped, 0);
}

}  // namespace
}  // namespace brigade::tests
