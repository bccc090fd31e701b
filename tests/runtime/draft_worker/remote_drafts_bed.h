// A coordinator's side of draft workers and workers' real engines, with the stream between them
// played by the test: messages wait, workers die and come back, drafts are spoilt. One thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/core/build_version.h"
#include "runtime/draft_worker/draft_engine.h"
#include "runtime/speculative/remote_drafts.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/scripted_model.h"

namespace brigade::tests {

using namespace runtime;  // NOLINT: the tests speak of little else

inline constexpr int kVocab = 24, kContext = 128, kSequences = 4;

inline const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> words = make_byte_tokenizer({"ab", "cd"});
  return *words;
}

// A worker's process as far as the coordinator can tell: an engine behind a stream whose messages
// move when the test says so.
class Worker : public draft_worker::DraftSink {
 public:
  Worker(DraftLinks* links, const std::string& name, absl::Time now)
      : links_(links),
        world_(60, 4),
        model_(&world_, kVocab,
               {.max_rows = 16,
                .max_sequences = kSequences,
                .max_blocks = 32,
                .max_logit_rows = kSequences}),
        engine_(model_, {.block_size = 4, .num_blocks = 60},
                {.limits = {.vocab = kVocab, .max_context = kContext}, .max_sequences = kSequences},
                *this) {
    auto link = links->open(std::make_shared<kernels::Waker>(), now);
    EXPECT_TRUE(link.ok());
    link_ = *link;
    EXPECT_TRUE(say(hello(name), now).ok());
  }
  ~Worker() override { links_->close(link_); }

  static DraftHello hello(const std::string& name) {
    return {.worker_id = name,
            .build_version = kBuildVersion,
            .vocabulary_hash = tokenizer().vocabulary_hash(),
            .vocabulary_size = tokenizer().vocab_size(),
            .max_sequences = kSequences,
            .max_context = kContext};
  }

  absl::Status say(DraftWorkerSays message, absl::Time now) {
    return link_->said(std::move(message), now);
  }
  // Everything that the coordinator has to say.
  void hear(absl::Time now) {
    while (auto message = link_->next(now)) {
      if (const auto* ping = std::get_if<DraftPing>(&*message)) {
        EXPECT_TRUE(say(DraftPong{.number = ping->number}, now).ok());
      }
      if (auto* commands = std::get_if<DraftCommands>(&*message)) {
        for (DraftCommand& command : commands->commands) engine_.take(std::move(command));
      }
    }
  }
  void draft_once() { ASSERT_TRUE(engine_.step().ok()); }
  // What has been drafted and refused so far.
  void report(absl::Time now) {
    ASSERT_TRUE(say(ChunkMessages{std::exchange(chunks, {})}, now).ok());
    for (DraftNack& nack : nacks) ASSERT_TRUE(say(std::move(nack), now).ok());
    nacks.clear();
  }
  void work(absl::Time now) {
    hear(now);
    while (engine_.has_work()) draft_once();
    report(now);
    ASSERT_EQ(world_.problem(), "");
  }

  void drafted(const ChunkMessage& chunk) override { chunks.push_back(chunk); }
  void refused(const DraftNack& nack) override { nacks.push_back(nack); }

  DraftLinks* const links_;
  ScriptedWorld world_;
  ScriptedModel model_;
  draft_worker::DraftEngine engine_;
  std::shared_ptr<DraftLink> link_;
  std::vector<ChunkMessage> chunks;
  std::vector<DraftNack> nacks;
};

inline RemoteDraftsOptions options_of_test() {
  RemoteDraftsOptions options;
  options.limits = {
      .vocab = kVocab, .max_positions = kContext, .max_run_ahead = 16, .max_law_entries = 8};
  options.window = 6;
  return options;
}

inline SequenceToDraft greedy(int prompt_length) {
  return {.prompt_length = prompt_length, .max_length = 100};
}

struct Bed {
  DraftLinks links{{.tokenizer = &tokenizer()}};
  RemoteDrafts drafts{links, options_of_test()};
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  DraftList list{kVocab, 16, 8};
};

inline std::vector<int32_t> tokens_of(const DraftList& list) {
  std::vector<int32_t> tokens;
  for (const DraftedToken& draft : list.tokens()) tokens.push_back(draft.token);
  return tokens;
}

// What a greedy draft worker says after `text`.
inline std::vector<int32_t> greedy_drafts(std::vector<int32_t> text, int count) {
  const size_t before = text.size();
  for (int i = 0; i < count; ++i) text.push_back(scripted_argmax(text, kVocab));
  return {text.begin() + static_cast<std::ptrdiff_t>(before), text.end()};
}

}  // namespace brigade::tests
