// The real brigade-draft-worker with the demo draft against a coordinator's draft side in this
// process: what it drafts, what it keeps, how it goes and comes back.
#include <gmock/gmock.h>

#include <csignal>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/speculative/draft_law.h"
#include "tests/support/child_process.h"
#include "tests/support/draft_bed.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_env.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::tests {
namespace {

using runtime::AcceptRule;
using runtime::RemoteDrafter;
using runtime::SequenceToDraft;
using runtime::Tokenizer;
using testing::HasSubstr;

std::string draft_folder() { return source_dir() + "/models/demo/draft"; }

// What the draft says after a text, computed here from its model.
class LocalDraft {
 public:
  LocalDraft()
      : runner_(*ModelRunner::open(
            draft_folder(),
            {.max_sequences = 1, .max_rows = 256, .kv = {.block_size = 16, .num_blocks = 64}})),
        policy_(2048) {}

  int32_t next(const SequenceToDraft& about, const std::vector<int32_t>& text) {
    runner_->restart(0);
    const ModelRunner::Rows rows = *runner_->feed(0, text, 256);
    runtime::Distribution distribution;
    EXPECT_TRUE(policy_.distribution(rows.back(), {.params = &about.sampling}, &distribution));
    const runtime::RandomKey key{about.sampling.seed, static_cast<uint32_t>(about.sample_index)};
    const auto position = static_cast<uint32_t>(text.size());
    if (about.rule != AcceptRule::kRejection) return runtime::draw(distribution, key, position);
    std::vector<int32_t> tokens;
    std::vector<float> weights;
    runtime::sparse_weights(distribution, 16, &tokens, &weights);
    runtime::Distribution law;
    EXPECT_TRUE(runtime::law_from_weights(tokens, weights, 2048, &law).ok());
    return runtime::draw(law, key, position, runtime::RandomPurpose::kDraft);
  }

 private:
  std::unique_ptr<ModelRunner> runner_;
  runtime::Policy policy_;
};

struct Golden {
  std::vector<int32_t> prompt, greedy;
};

std::vector<Golden> golden_stories() {
  std::ifstream file(source_dir() + "/models/demo/golden.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::vector<Golden> stories;
  for (const auto& one : golden["cases"]) {
    if (one["model"] == "target") stories.push_back({one["prompt_ids"], one["greedy_ids"]});
  }
  return stories;
}

class DraftWorkerProcessTest : public testing::Test {
 protected:
  std::unique_ptr<ChildProcess> start(const std::string& address,
                                      const std::vector<std::string>& more = {}) {
    std::vector<std::string> argv = {program_folder() + "/brigade-draft-worker", "--join", address,
                                     "--threads", "1"};
    if (std::find(more.begin(), more.end(), "--model") == more.end()) {
      argv.insert(argv.end(), {"--model", draft_folder()});
    }
    argv.insert(argv.end(), more.begin(), more.end());
    return std::make_unique<ChildProcess>(argv, log_);
  }
  std::string log() const { return read_file(log_); }

  ModelFolder folder_;
  const std::string log_ = folder_.file("draft.log");
  const std::unique_ptr<Tokenizer> tokenizer_ =
      *Tokenizer::load(draft_folder() + "/tokenizer.json");
};

// The target's own greedy stories are committed as a verifier would: drafts while they agree, then
// one token of the target.
TEST_F(DraftWorkerProcessTest, DraftsAheadOfTheStoriesOfTheTarget) {
  DraftBed bed({.tokenizer = tokenizer_.get()});
  auto worker = start(bed.address());
  ASSERT_TRUE(bed.wait_for_workers(1)) << log();
  LocalDraft local;
  struct Live {
    Golden story;
    SequenceToDraft about;
    std::vector<int32_t> text;
    std::unique_ptr<RemoteDrafter> drafter;
    size_t done = 0;
  };
  std::vector<Live> live;
  for (const Golden& story : golden_stories()) {
    Live one{.story = story, .text = story.prompt};
    one.about.prompt_length = static_cast<int>(story.prompt.size());
    one.about.max_length = static_cast<int>(story.prompt.size() + story.greedy.size());
    live.push_back(std::move(one));
  }
  ASSERT_GE(live.size(), 2u);
  for (Live& one : live) one.drafter = bed.drafts.open(one.about, one.text);

  runtime::DraftList list(2048, 4);
  int passes = 0, tokens = 0;
  std::vector<int> tested(4), accepted(4);
  for (bool going = true; going;) {
    going = false;
    // A pass of a target takes some milliseconds; the draft worker may use them or not.
    (void)bed.collect_until([&] { return false; }, absl::Milliseconds(3));
    for (Live& one : live) {
      if (one.done == one.story.greedy.size()) continue;
      going = true;
      one.drafter->draft(one.text, 4, &list);
      std::vector<int32_t> text = one.text;
      for (const auto& draft : list.tokens()) {
        ASSERT_EQ(draft.token, local.next(one.about, text));
        text.push_back(draft.token);
      }
      ++passes;
      size_t kept = 0;
      while (kept < static_cast<size_t>(list.size()) && one.done + kept < one.story.greedy.size()) {
        ++tested[kept];
        if (list.tokens()[kept].token != one.story.greedy[one.done + kept]) break;
        ++accepted[kept++];
      }
      const size_t grown = std::min(kept + 1, one.story.greedy.size() - one.done);
      for (size_t i = 0; i < grown; ++i) one.text.push_back(one.story.greedy[one.done++]);
      tokens += static_cast<int>(grown);
      one.drafter->committed(one.text);
    }
  }
  const runtime::RemoteDraftsCounters counters = bed.drafts.counters();
  EXPECT_EQ(counters.bad, 0) << counters.last_fault;
  EXPECT_EQ(counters.refused, 0) << counters.last_fault;
  EXPECT_GT(counters.matched, 0);
  EXPECT_GT(counters.ahead, 0);
  EXPECT_LT(passes, tokens);
  std::printf("%d tokens of %zu stories in %d passes, %.2f a pass; accepted by position", tokens,
              live.size(), passes, double(tokens) / passes);
  for (size_t i = 0; i < tested.size(); ++i) std::printf(" %d/%d", accepted[i], tested[i]);
  std::printf("; %lld of %lld drafts were made before the verdict of the pass before was known\n",
              static_cast<long long>(counters.ahead), static_cast<long long>(counters.offered));
  worker->signal(SIGTERM);
  EXPECT_EQ(worker->wait(), 0) << log();
}

// A target that agrees with its draft: chains survive every verdict.
TEST_F(DraftWorkerProcessTest, EveryRuleDraftsWhatTheDraftModelSays) {
  DraftBed bed({.tokenizer = tokenizer_.get()});
  auto worker = start(bed.address(), {"--kv-memory", "16M", "--max-sequences", "4"});
  ASSERT_TRUE(bed.wait_for_workers(1)) << log();
  LocalDraft local;
  runtime::DraftList list(2048, 8, 16);
  for (const AcceptRule rule :
       {AcceptRule::kGreedy, AcceptRule::kCoupled, AcceptRule::kRejection}) {
    SequenceToDraft about{.rule = rule, .sample_index = 1, .max_length = 200};
    if (rule != AcceptRule::kGreedy) {
      about.sampling.temperature = 0.9;
      about.sampling.top_p = 0.95;
      about.sampling.seed = 1234;
    }
    std::vector<int32_t> text = golden_stories()[0].prompt;
    about.prompt_length = static_cast<int>(text.size());
    const size_t end = text.size() + 40;
    const auto drafter = bed.drafts.open(about, text);
    const int64_t matched = bed.drafts.counters().matched;
    while (text.size() < end) {
      ASSERT_TRUE(bed.collect_until([&] { return drafter->tail().size() >= 4; })) << log();
      drafter->draft(text, 4, &list);
      ASSERT_EQ(list.size(), 4);
      for (const auto& draft : list.tokens()) {
        ASSERT_EQ(draft.token, local.next(about, text));
        if (rule == AcceptRule::kRejection) {
          EXPECT_GT(draft_probability(draft, draft.token), 0);
        }
        text.push_back(draft.token);
      }
      drafter->committed(text);
    }
    EXPECT_EQ(bed.drafts.counters().matched - matched, 40);
  }
  EXPECT_EQ(bed.drafts.counters().bad, 0) << bed.drafts.counters().last_fault;
}

TEST_F(DraftWorkerProcessTest, AKilledWorkersSuccessorGoesOn) {
  DraftBed bed({.tokenizer = tokenizer_.get()});
  auto worker = start(bed.address());
  ASSERT_TRUE(bed.wait_for_workers(1)) << log();
  std::vector<int32_t> text = golden_stories()[0].prompt;
  SequenceToDraft about{.prompt_length = static_cast<int>(text.size()), .max_length = 500};
  const auto drafter = bed.drafts.open(about, text);
  LocalDraft local;
  runtime::DraftList list(2048, 4);
  for (int life = 0; life < 3; ++life) {
    ASSERT_TRUE(bed.collect_until([&] { return drafter->tail().size() >= 4; })) << log();
    drafter->draft(text, 4, &list);
    for (const auto& draft : list.tokens()) {
      ASSERT_EQ(draft.token, local.next(about, text));
      text.push_back(draft.token);
    }
    worker->signal(SIGKILL);
    EXPECT_EQ(worker->wait(), 128 + SIGKILL);
    drafter->committed(text);
    ASSERT_TRUE(bed.collect_until([&] { return !drafter->attached(); }));
    // What was sent before the end is used up; then there is nothing, and nobody waits for it.
    text.insert(text.end(), 16, 5);
    drafter->committed(text);
    drafter->draft(text, 4, &list);
    EXPECT_EQ(list.size(), 0);
    worker = start(bed.address());
    ASSERT_TRUE(bed.collect_until([&] {
      drafter->draft(text, 4, &list);
      return drafter->attached();
    })) << log();
  }
  EXPECT_EQ(bed.drafts.counters().lost, 3);
  EXPECT_EQ(bed.drafts.counters().reopened, 3);
}

TEST_F(DraftWorkerProcessTest, AStoppedWorkerIsLostAndComesBack) {
  DraftBed bed({.tokenizer = tokenizer_.get(), .lost_after = absl::Milliseconds(500)});
  auto worker = start(bed.address());
  ASSERT_TRUE(bed.wait_for_workers(1)) << log();
  const uint64_t first = bed.links.links()[0]->id();
  worker->signal(SIGSTOP);
  ASSERT_TRUE(bed.wait_for_workers(0)) << log();
  worker->signal(SIGCONT);
  ASSERT_TRUE(bed.wait_for_workers(1)) << log();
  EXPECT_NE(bed.links.links()[0]->id(), first);
}

TEST_F(DraftWorkerProcessTest, ALostCoordinatorIsDialledAgain) {
  auto first = std::make_unique<DraftBed>(DraftBedOptions{.tokenizer = tokenizer_.get()});
  const int port = first->port;
  auto worker = start(first->address());
  ASSERT_TRUE(first->wait_for_workers(1)) << log();
  first.reset();
  DraftBed second({.tokenizer = tokenizer_.get(), .port = port});
  ASSERT_TRUE(second.wait_for_workers(1)) << log();
  EXPECT_THAT(log(), HasSubstr("is lost"));
}

TEST_F(DraftWorkerProcessTest, AnotherVocabularyIsRefusedByItsFirstDifferentId) {
  std::ifstream file(draft_folder() + "/tokenizer.json");
  nlohmann::json json = nlohmann::json::parse(file);
  // Two letters change places.
  const int x = json["model"]["vocab"]["X"], q = json["model"]["vocab"]["Q"];
  json["model"]["vocab"]["X"] = q;
  json["model"]["vocab"]["Q"] = x;
  const auto other = *Tokenizer::parse(json.dump(), "other");
  DraftBed bed({.tokenizer = other.get()});
  auto worker = start(bed.address());
  EXPECT_EQ(worker->wait(), 2);
  EXPECT_THAT(log(),
              HasSubstr("the vocabularies differ first at id " + std::to_string(std::min(x, q)) +
                        ": the target's has \"X\", the draft's \"Q\""));
}

TEST_F(DraftWorkerProcessTest, NeedsTheTokenOfADraftWorker) {
  folder_.write("draft", "the-draft-workers-token\n");
  folder_.write("worker", "the-expert-workers-token\n");
  DraftBed bed({.tokenizer = tokenizer_.get(),
                .draft_token_file = folder_.file("draft"),
                .worker_token_file = folder_.file("worker")});
  EXPECT_EQ(start(bed.address())->wait(), 2);
  EXPECT_THAT(log(), HasSubstr("draft token"));
  EXPECT_EQ(start(bed.address(), {"--token-file", folder_.file("worker")})->wait(), 2);
  EXPECT_THAT(log(), HasSubstr("this port needs a draft token"));
  auto worker = start(bed.address(), {"--token-file", folder_.file("draft")});
  EXPECT_TRUE(bed.wait_for_workers(1)) << log();
}

TEST_F(DraftWorkerProcessTest, RefusesWhatIsNoDraft) {
  struct Case {
    std::vector<std::string> flags;
    const char* sentence;
  };
  const Case cases[] = {
      {{"--model", source_dir() + "/models/demo/target"}, "is a mixture of experts"},
      {{"--model", "/nowhere"}, "--model /nowhere is no folder"},
      {{"--max-context", "2000"}, "--max-context 2000: the model has 1024"},
      {{"--join", "10.1.2.3:50052"}, "add --ca and --token-file, or say --insecure"},
      {{"--max-sequences", "0"}, "--max-sequences is 0"},
  };
  for (const Case& one : cases) {
    std::vector<std::string> argv = {program_folder() + "/brigade-draft-worker"};
    argv.insert(argv.end(), one.flags.begin(), one.flags.end());
    if (one.flags[0] != "--join") argv.insert(argv.end(), {"--join", "127.0.0.1:1"});
    if (one.flags[0] != "--model") argv.insert(argv.end(), {"--model", draft_folder()});
    ChildProcess worker(argv, log_);
    EXPECT_EQ(worker.wait(), 2) << one.sentence;
    EXPECT_THAT(log(), HasSubstr(one.sentence));
  }
}

}  // namespace
}  // namespace brigade::tests
