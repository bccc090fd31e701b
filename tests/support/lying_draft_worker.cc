#include "tests/support/lying_draft_worker.h"

#include <gtest/gtest.h>

#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/core/build_version.h"
#include "runtime/draft_worker/draft_engine.h"
#include "runtime/draft_worker/draft_outbox.h"
#include "runtime/draft_worker/draft_stream.h"
#include "tests/support/model_runner.h"

namespace brigade::tests {

using namespace runtime;                // NOLINT: the stream's messages
using namespace runtime::draft_worker;  // NOLINT

namespace {

constexpr int kSequences = 8;
constexpr size_t kRemembered = 64;

}  // namespace

struct LyingDraftWorker::Parts {
  Parts(const std::string& address, const std::string& model, const Tokenizer& tokenizer,
        uint64_t seed)
      : address(address),
        tokenizer(tokenizer),
        runner(*ModelRunner::open(model, {.max_sequences = kSequences,
                                          .max_rows = 64,
                                          .kv = {.block_size = 16, .num_blocks = 256}})),
        engine(*runner->model().passes[0], runner->model().kv->geometry(),
               {.limits = {.vocab = tokenizer.vocab_size(), .max_context = 512},
                .max_sequences = kSequences},
               outbox),
        random(seed) {}

  int below(int bound) { return static_cast<int>(random() % static_cast<uint64_t>(bound)); }

  void run() {
    while (!stopping) {
      dial();
      while (!stopping && !ended) turn();
      stream.reset();
      engine.clear();
      outbox.clear();
      // Whoever is sent away comes back, but not at once.
      const absl::Time again = absl::Now() + absl::Milliseconds(20);
      while (!stopping && absl::Now() < again) waker.wait_until(again);
    }
  }

  void dial() {
    ended = false;
    ++streams;
    auto dialled = DraftStream::dial({.address = address},
                                     {.worker_id = "liar",
                                      .build_version = kBuildVersion,
                                      .vocabulary_hash = tokenizer.vocabulary_hash(),
                                      .vocabulary_size = tokenizer.vocab_size(),
                                      .max_sequences = kSequences,
                                      .max_context = 512},
                                     {.on_message =
                                          [this](DraftCoordinatorSays message) {
                                            std::lock_guard lock(mutex);
                                            incoming = std::move(message);
                                            waker.wake();
                                          },
                                      .on_written = [this] { waker.wake(); },
                                      .on_ended =
                                          [this](const absl::Status&) {
                                            ended = true;
                                            waker.wake();
                                          }});
    ASSERT_TRUE(dialled.ok()) << dialled.status();
    stream = *std::move(dialled);
  }

  void turn() {
    std::optional<DraftCoordinatorSays> message;
    {
      std::lock_guard lock(mutex);
      message = std::exchange(incoming, std::nullopt);
    }
    if (message) {
      obey(*std::move(message));
      stream->next();
    }
    if (engine.has_work() && !outbox.full()) {
      ASSERT_TRUE(engine.step().ok());
    } else if (!message) {
      waker.wait_until(absl::Now() + absl::Milliseconds(50));
    }
    if (ended || !stream->writable()) return;
    if (pong) {
      stream->send(*std::exchange(pong, std::nullopt));
    } else if (auto next = outbox.take()) {
      send(*std::move(next));
    }
  }

  void obey(DraftCoordinatorSays message) {
    if (const auto* ping = std::get_if<DraftPing>(&message))
      pong = DraftPong{.number = ping->number};
    auto* commands = std::get_if<DraftCommands>(&message);
    if (commands == nullptr) return;
    for (DraftCommand& command : commands->commands) engine.take(std::move(command));
  }

  void send(DraftWorkerSays message) {
    auto* drafts = std::get_if<ChunkMessages>(&message);
    if (drafts == nullptr || below(3) == 0) {
      ++honest;
    } else {
      ++lies;
      if (sent.size() < kRemembered) sent.push_back(*drafts);
      for (ChunkMessage& chunk : drafts->chunks) spoil(&chunk);
      if (below(8) == 0) *drafts = sent[static_cast<size_t>(below(static_cast<int>(sent.size())))];
      if (below(8) == 0) std::swap(drafts->chunks.front(), drafts->chunks.back());
      if (below(40) == 0) flood(drafts);
    }
    // Late, now and then.
    if (below(20) == 0) absl::SleepFor(absl::Milliseconds(below(10)));
    stream->send(message);
  }

  void spoil(ChunkMessage* chunk) {
    switch (below(14)) {
      case 0:
        chunk->tokens[0] = below(tokenizer.vocab_size());
        break;
      case 1:
        chunk->tokens.back() = tokenizer.vocab_size() + below(1000);
        break;
      case 2:
        chunk->position += below(7) - 3;
        break;
      case 3:
        chunk->base_length += below(5) - 2;
        break;
      case 4:
        chunk->prefix_hash ^= 1;
        break;
      case 5:
        chunk->epoch += static_cast<uint64_t>(below(3)) - 1;
        break;
      case 6:
        chunk->sequence += static_cast<uint64_t>(below(5)) - 2;
        break;
      case 7:
        chunk->tokens.clear();
        break;
      case 8:
        chunk->form = LawForm::kSparse;
        break;
      default:  // wrong, but in order: the next token of all is another one
        for (int32_t& token : chunk->tokens) token = below(tokenizer.vocab_size());
    }
  }

  void flood(ChunkMessages* drafts) {
    const ChunkMessage chunk = drafts->chunks.front();
    for (int i = 0; i < 2000; ++i) drafts->chunks.push_back(chunk);
  }

  const std::string address;
  const Tokenizer& tokenizer;
  const std::unique_ptr<ModelRunner> runner;
  DraftOutbox outbox;
  DraftEngine engine;
  std::mt19937_64 random;
  std::vector<ChunkMessages> sent;
  std::optional<DraftPong> pong;
  kernels::Waker waker;
  std::mutex mutex;
  std::optional<DraftCoordinatorSays> incoming;  // guarded by mutex
  std::atomic<bool> ended{false}, stopping{false};
  std::atomic<int64_t> lies{0}, honest{0}, streams{0};
  std::unique_ptr<DraftStream> stream;
  std::thread thread;
};

LyingDraftWorker::LyingDraftWorker(const std::string& address, const std::string& model,
                                   const Tokenizer& tokenizer, uint64_t seed)
    : parts_(std::make_unique<Parts>(address, model, tokenizer, seed)) {
  parts_->thread = std::thread([this] { parts_->run(); });
}

LyingDraftWorker::~LyingDraftWorker() {
  parts_->stopping = true;
  parts_->waker.wake();
  parts_->thread.join();
}

int64_t LyingDraftWorker::lies() const { return parts_->lies; }
int64_t LyingDraftWorker::honest() const { return parts_->honest; }
int64_t LyingDraftWorker::streams() const { return parts_->streams; }

}  // namespace brigade::tests
