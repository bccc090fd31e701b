// The real Generator: an inbox that any thread may submit to, and one step thread that owns
// everything else. Submitting threads only check, book a place and enqueue; the step thread runs
// the loop and sleeps on one waker when nothing can go on. Create, then start(); stop() may be
// called twice and ends what still runs with UNAVAILABLE.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/waker.h"
#include "runtime/engine/engine_config.h"
#include "runtime/engine/generator.h"
#include "runtime/engine/inbox.h"
#include "runtime/engine/status_board.h"
#include "runtime/engine/step_loop.h"
#include "runtime/model/step_model.h"
#include "runtime/speculative/draft_source.h"
#include "runtime/tokenizer/tokenizer.h"

namespace brigade::runtime {

struct EngineParts {
  // One microbatch each, over the same KV cache, with equal vocabularies and limits.
  std::vector<std::unique_ptr<StepModel>> models;
  KvGeometry kv;
  const Tokenizer* tokenizer = nullptr;  // null: token ids only; must outlive the engine
  std::vector<int32_t> eos_tokens;
  // Where the step thread sleeps; empty: on its waker. Called until stop() returns.
  StepSleep sleep;
  std::unique_ptr<DraftSource> drafts;  // null: prompt lookup
  StepClock clock;                      // measures steps for depth control; empty: absl::Now
};

class Engine : public Generator {
 public:
  // INVALID_ARGUMENT names the setting that is out of bounds.
  static absl::StatusOr<std::unique_ptr<Engine>> create(const EngineConfig& config,
                                                        EngineParts parts);
  ~Engine() override;

  // Starts the step thread, which runs a warm-up step; submit() works once status().ready.
  void start();
  void stop();

  // All return at once, from any thread.
  absl::StatusOr<std::shared_ptr<TokenStream>> submit(GenerateRequest request) override;
  GeneratorStatus status() const override;
  void start_drain() override;
  bool idle() const override;

 private:
  Engine(const EngineConfig& config, EngineParts parts);
  void run();

  const EngineConfig config_;
  const KvGeometry kv_;
  const Tokenizer* const tokenizer_;
  const std::vector<int32_t> eos_tokens_;
  const int vocab_;
  const std::unique_ptr<DraftSource> drafts_;
  // Streams that clients still hold wake it after the engine has gone.
  const std::shared_ptr<kernels::Waker> waker_;
  Inbox inbox_;
  StatusBoard board_;
  StepLoop loop_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace brigade::runtime
