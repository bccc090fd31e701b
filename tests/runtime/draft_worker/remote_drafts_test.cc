// The coordinator's side of draft workers: what it drafts ahead, which worker gets a sequence,
// what a lost, lying or silent worker costs.
#include "tests/runtime/draft_worker/remote_drafts_bed.h"

namespace brigade::tests {
namespace {

TEST(RemoteDrafts, WithoutAWorkerThereAreNoDrafts) {
  Bed bed;
  std::vector<int32_t> text = {1, 2, 3};
  const auto drafter = bed.drafts.open(greedy(3), text);
  bed.drafts.collect(bed.now);
  drafter->draft(text, 4, &bed.list);
  EXPECT_EQ(bed.list.size(), 0);
  text.push_back(4);
  drafter->committed(text);
  EXPECT_FALSE(drafter->attached());
}

TEST(RemoteDrafts, DraftsAheadAndKeepsWhatWasRight) {
  Bed bed;
  Worker worker(&bed.links, "d0", bed.now);
  bed.drafts.collect(bed.now);
  std::vector<int32_t> text = {1, 2, 3};
  const auto drafter = bed.drafts.open(greedy(3), text);
  worker.work(bed.now);
  bed.drafts.collect(bed.now);
  const std::vector<int32_t> expected = greedy_drafts(text, 16);
  drafter->draft(text, 4, &bed.list);
  EXPECT_EQ(tokens_of(bed.list), (std::vector<int32_t>(expected.begin(), expected.begin() + 4)));
  drafter->run_ahead(text, &bed.list);
  ASSERT_EQ(bed.list.size(), 5);
  EXPECT_EQ(bed.list.tokens()[4].token, expected[4]);

  // All five are committed; the worker has not heard of it, and there are drafts all the same.
  text.insert(text.end(), expected.begin(), expected.begin() + 5);
  drafter->committed(text);
  drafter->draft(text, 4, &bed.list);
  EXPECT_EQ(tokens_of(bed.list),
            (std::vector<int32_t>(expected.begin() + 5, expected.begin() + 9)));
  worker.work(bed.now);
  bed.drafts.collect(bed.now);
  EXPECT_EQ(drafter->tail().size(), 10);
  EXPECT_EQ(bed.drafts.counters().matched, 5);
  // Four were there before the first verdict, four more given before it was known.
  EXPECT_EQ(bed.drafts.counters().offered, 8);
  EXPECT_EQ(bed.drafts.counters().ahead, 4);

  // A token of the target's own ends the chain.
  text.push_back((expected[5] + 1) % kVocab);
  drafter->committed(text);
  drafter->draft(text, 4, &bed.list);
  EXPECT_EQ(bed.list.size(), 0);
  worker.work(bed.now);
  bed.drafts.collect(bed.now);
  drafter->draft(text, 4, &bed.list);
  EXPECT_EQ(tokens_of(bed.list), greedy_drafts(text, 4));
}

TEST(RemoteDrafts, AtDepthZeroTheWorkerRestsAndIsToldNothing) {
  Bed bed;
  Worker worker(&bed.links, "d0", bed.now);
  bed.drafts.collect(bed.now);
  std::vector<int32_t> text = {1, 2, 3};
  const auto drafter = bed.drafts.open(greedy(3), text);
  worker.work(bed.now);
  bed.drafts.collect(bed.now);
  const int64_t rows = worker.world_.rows;
  drafter->draft(text, 0, &bed.list);
  worker.hear(bed.now);  // of the credit taken back
  for (int i = 0; i < 20; ++i) {
    text.push_back(5);
    drafter->committed(text);
    drafter->draft(text, 0, &bed.list);
    EXPECT_FALSE(worker.link_->next(bed.now).has_value());
  }
  EXPECT_FALSE(worker.engine_.has_work());
  EXPECT_EQ(worker.world_.rows, rows);
  drafter->draft(text, 3, &bed.list);
  worker.work(bed.now);
  bed.drafts.collect(bed.now);
  drafter->draft(text, 3, &bed.list);
  EXPECT_EQ(tokens_of(bed.list), greedy_drafts(text, 3));
}

TEST(RemoteDrafts, SequencesGoToTheWorkerWithTheFewest) {
  Bed bed;
  Worker first(&bed.links, "d0", bed.now), second(&bed.links, "d1", bed.now);
  bed.drafts.collect(bed.now);
  std::vector<std::unique_ptr<RemoteDrafter>> drafters;
  const std::vector<int32_t> text = {1, 2};
  for (int i = 0; i < 2 * kSequences; ++i) drafters.push_back(bed.drafts.open(greedy(2), text));
  first.work(bed.now);
  second.work(bed.now);
  EXPECT_EQ(first.engine_.open_sequences(), kSequences);
  EXPECT_EQ(second.engine_.open_sequences(), kSequences);
  // Both full: one more waits, and has its place when another ends.
  drafters.push_back(bed.drafts.open(greedy(2), text));
  EXPECT_FALSE(drafters.back()->attached());
  drafters.erase(drafters.begin());
  drafters.back()->draft(text, 2, &bed.list);
  EXPECT_TRUE(drafters.back()->attached());
}

TEST(RemoteDrafts, ALostWorkersSequencesGoOnElsewhereOrLater) {
  Bed bed;
  auto first = std::make_unique<Worker>(&bed.links, "d0", bed.now);
  bed.drafts.collect(bed.now);
  std::vector<int32_t> text = {1, 2, 3};
  const auto drafter = bed.drafts.open(greedy(3), text);
  first->work(bed.now);
  bed.drafts.collect(bed.now);
  const uint64_t epoch = drafter->tail().epoch();
  first.reset();
  bed.drafts.collect(bed.now);
  EXPECT_FALSE(drafter->attached());
  // What had arrived is as good as it was.
  drafter->draft(text, 2, &bed.list);
  EXPECT_EQ(tokens_of(bed.list), greedy_drafts(text, 2));
  text.push_back(bed.list.tokens()[0].token);
  drafter->committed(text);

  Worker second(&bed.links, "d0", bed.now);
  bed.drafts.collect(bed.now);
  drafter->draft(text, 2, &bed.list);
  EXPECT_TRUE(drafter->attached());
  EXPECT_GT(drafter->tail().epoch(), epoch);
  second.work(bed.now);
  bed.drafts.collect(bed.now);
  drafter->draft(text, 3, &bed.list);
  EXPECT_EQ(tokens_of(bed.list), greedy_drafts(text, 3));
  EXPECT_EQ(bed.drafts.counters().lost, 1);
  EXPECT_EQ(bed.drafts.counters().reopened, 1);
}

TEST(RemoteDrafts, ABadDraftCostsItsSequenceForAWhile) {
  Bed bed;
  Worker worker(&bed.links, "d0", bed.now);
  bed.drafts.collect(bed.now);
  const std::vector<int32_t> text = {1, 2, 3}, other = {4, 5, 6};
  const auto drafter = bed.drafts.open(greedy(3), text);
  const auto neighbour = bed.drafts.open(greedy(3), other);
  int shut_outs = 0;
  for (int i = 0; i < 40; ++i) {
    worker.hear(bed.now);
    while (worker.engine_.has_work()) worker.draft_once();
    for (ChunkMessage& chunk : worker.chunks) {
      if (chunk.sequence == 1) chunk.tokens[0] = kVocab + i;
    }
    worker.report(bed.now);
    const int64_t before = bed.drafts.counters().bad;
    bed.drafts.collect(bed.now);
    shut_outs += static_cast<int>(bed.drafts.counters().bad - before);
    drafter->draft(text, 3, &bed.list);
    EXPECT_EQ(bed.list.size(), 0);
    EXPECT_FALSE(drafter->attached() && shut_outs > 3);
    bed.now += absl::Milliseconds(200);
  }
  EXPECT_EQ(shut_outs, 4);  // opened again three times, later each time, then never
  neighbour->draft(other, 3, &bed.list);
  EXPECT_EQ(tokens_of(bed.list), greedy_drafts(other, 3));
  EXPECT_NE(bed.drafts.counters().last_fault.find("vocabulary"), std::string::npos);
}

TEST(DraftLink, ALiarIsSentAway) {
  Bed bed;
  Worker worker(&bed.links, "d0", bed.now);
  absl::Time next;
  for (int i = 0; i <= 64; ++i) {
    EXPECT_TRUE(worker.link_->overdue(bed.now, &next).ok());
    worker.link_->count_bad_message();
  }
  EXPECT_EQ(worker.link_->overdue(bed.now, &next).code(), absl::StatusCode::kInvalidArgument);
}

TEST(DraftLink, SilenceEndsItUnlessItIsNotRead) {
  Bed bed;
  Worker worker(&bed.links, "d0", bed.now);
  absl::Time next;
  for (int i = 0; i < 20; ++i) {
    bed.now += absl::Seconds(1);
    worker.hear(bed.now);
    ASSERT_TRUE(worker.link_->overdue(bed.now, &next).ok());
  }
  bed.now += absl::Seconds(4);
  EXPECT_EQ(worker.link_->overdue(bed.now, &next).code(), absl::StatusCode::kUnavailable);

  // A flood is not read until the step thread has taken it, and what is not read cannot be heard.
  ChunkMessages flood;
  for (int i = 0; i < 4096; ++i) flood.chunks.push_back({.sequence = 7, .tokens = {1, 2, 3}});
  ASSERT_TRUE(worker.say(flood, bed.now).ok());
  EXPECT_FALSE(worker.link_->may_read());
  bed.now += absl::Seconds(60);
  EXPECT_TRUE(worker.link_->overdue(bed.now, &next).ok());
  bed.drafts.collect(bed.now);
  EXPECT_TRUE(worker.link_->may_read());
}

TEST(DraftLink, AWorkerThatTakesNoCommandsIsSentAway) {
  Bed bed;
  Worker worker(&bed.links, "d0", bed.now);
  absl::Time next;
  for (uint64_t id = 1; id <= 4096; ++id) worker.link_->close(id, 1);
  EXPECT_TRUE(worker.link_->overdue(bed.now, &next).ok());
  worker.link_->close(5000, 1);
  EXPECT_EQ(worker.link_->overdue(bed.now, &next).code(), absl::StatusCode::kResourceExhausted);
}

TEST(DraftLink, GreetingsInOrderOrNotAtAll) {
  Bed bed;
  const auto open = [&] { return *bed.links.open(std::make_shared<kernels::Waker>(), bed.now); };
  auto link = open();
  EXPECT_EQ(link->said(ChunkMessages{}, bed.now).code(), absl::StatusCode::kInvalidArgument);
  link = open();
  ASSERT_TRUE(link->said(Worker::hello("d0"), bed.now).ok());
  EXPECT_EQ(link->said(Worker::hello("d0"), bed.now).code(), absl::StatusCode::kInvalidArgument);
  link = open();
  DraftHello old = Worker::hello("d0");
  old.build_version = "0.0.9";
  EXPECT_EQ(link->said(old, bed.now).code(), absl::StatusCode::kFailedPrecondition);
  link = open();
  absl::Time next;
  EXPECT_TRUE(link->overdue(bed.now + absl::Seconds(9), &next).ok());
  EXPECT_EQ(link->overdue(bed.now + absl::Seconds(10), &next).code(),
            absl::StatusCode::kDeadlineExceeded);
}

// Two parts of a vocabulary like the target's, with one id changed.
TEST(DraftLink, AnotherVocabularyIsRefusedByItsFirstDifferentId) {
  Bed bed;
  const int size = tokenizer().vocab_size();
  struct Case {
    int id;
    void (*spoil)(VocabularyToken*);
    const char* expected;
  };
  const Case cases[] = {
      {200, [](VocabularyToken* token) { token->bytes = "xyz"; }, "first at id 200"},
      {0, [](VocabularyToken* token) { token->special = !token->special; }, "first at id 0"},
      {size - 1, [](VocabularyToken* token) { *token = {}; }, "no token"},
      {size, nullptr, "though all tokens"},
  };
  for (const Case& one : cases) {
    const auto link = *bed.links.open(std::make_shared<kernels::Waker>(), bed.now);
    DraftHello hello = Worker::hello("d0");
    hello.vocabulary_hash ^= 1;
    ASSERT_TRUE(link->said(hello, bed.now).ok());
    EXPECT_FALSE(link->serving());
    const auto answer = link->next(bed.now);
    ASSERT_TRUE(answer.has_value() && std::holds_alternative<VocabularyWanted>(*answer));
    VocabularyPart whole = vocabulary_part(tokenizer(), 0);
    ASSERT_TRUE(whole.last);
    if (one.spoil != nullptr) one.spoil(&whole.tokens[static_cast<size_t>(one.id)]);
    VocabularyPart first{.first_id = 0,
                         .tokens = {whole.tokens.begin(), whole.tokens.begin() + 100}};
    VocabularyPart rest{
        .first_id = 100, .tokens = {whole.tokens.begin() + 100, whole.tokens.end()}, .last = true};
    absl::Status status = link->said(first, bed.now);
    if (status.ok()) status = link->said(rest, bed.now);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(one.expected), absl::string_view::npos) << status;
    bed.links.close(link);
  }
}

// Everything at once: what is drafted is what an undisturbed greedy worker would say, and in the
// end every sequence has its drafts again.

}  // namespace
}  // namespace brigade::tests
