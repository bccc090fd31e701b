// The threads of speculation beside each other: the step thread, a draft worker's thread that dies
// and comes back at any moment, and readers of the status. For the thread sanitizer; the words are
// compared too.
#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/runtime/engine/engine_bed.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/draft_worker_thread.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

constexpr int kVocab = 97, kAnswer = 40;

TEST(DraftThreads, WorkersDieBesideTheStepThread) {
  const auto tokenizer = make_byte_tokenizer({});
  runtime::DraftLinks links({.tokenizer = tokenizer.get(), .ping_interval = absl::Milliseconds(1)});
  const runtime::KvGeometry kv = {.block_size = 4, .num_blocks = 80};
  ScriptedWorld world(kv.num_blocks, kv.block_size);
  ScriptedModel model(&world, kVocab,
                      {.max_rows = 32, .max_sequences = 4, .max_blocks = 32, .max_logit_rows = 4});
  // Fewer sequences than the target runs: not all get drafts at once.
  const DraftWorkerThreadOptions worker = {
      .model = &model,
      .tokenizer = tokenizer.get(),
      .kv = kv,
      .engine = {.limits = {.vocab = kVocab, .max_context = 128}, .max_sequences = 4},
      .lifetime = 150};
  DraftWorkerThread draft(links, worker);
  runtime::RemoteDraftsOptions options;
  options.limits = {
      .vocab = kVocab, .max_positions = 128, .max_run_ahead = 16, .max_law_entries = 8};
  options.retry_first = absl::Milliseconds(1);
  EngineBedConfig config;
  config.drafts = [&] {
    return std::make_unique<ThreadDraftSource>(links, options, draft, /*patient=*/false);
  };
  EngineBed bed(config);

  std::atomic<bool> stopping{false};
  std::thread reader([&] {
    while (!stopping) {
      for (const runtime::DraftLinkStatus& status : links.status()) {
        EXPECT_GE(status.open_sequences, 0);
      }
      EXPECT_EQ(links.counters().bad, 0);
      absl::SleepFor(absl::Microseconds(100));
    }
  });
  std::vector<std::thread> clients;
  for (int client = 0; client < 3; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < scaled(60, 15); ++i) {
        auto request = request_of(some_prompt(client * 7 + i % 5, 6 + i % 9), kAnswer);
        request.num_sequences = 1 + i % 3;
        request.stop.ignore_eos = true;
        request.sampling.temperature = i % 4 == 3 ? 0.8 : 0;  // by rejection
        request.speculation = {
            .mode = i % 2 == 0 ? runtime::SpeculationMode::kFixed : runtime::SpeculationMode::kAuto,
            .depth = 1 + i % 8};
        const Answer answer = bed.generate(request);
        ASSERT_TRUE(answer.status.ok()) << answer.status;
        if (i % 4 == 3) continue;
        for (const SampleAnswer& sample : answer.samples) {
          EXPECT_EQ(sample.tokens, greedy_answer(request.prompt, kAnswer));
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  // However the threads were scheduled: asked until a worker has died and its drafts were taken.
  EXPECT_TRUE(eventually([&] {
    auto request = request_of(some_prompt(3, 8), kAnswer);
    request.stop.ignore_eos = true;
    request.speculation = {.mode = runtime::SpeculationMode::kFixed, .depth = 3};
    EXPECT_EQ(bed.generate(request).samples[0].tokens, greedy_answer(request.prompt, kAnswer));
    return draft.deaths() > 1 && links.counters().ahead > 0 && links.counters().reopened > 0;
  }));
  stopping = true;
  reader.join();
  EXPECT_EQ(draft.problem(), "");
  EXPECT_EQ(world.problem(), "");
  EXPECT_EQ(bed.leak(), "");
}

}  // namespace
}  // namespace brigade::tests
