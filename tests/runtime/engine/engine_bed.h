// A real engine with its step thread over scripted models, and the few calls that tests need:
// build, ask, read an answer to its end. Answers carry everything that must not depend on
// circumstances.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/engine/engine.h"
#include "tests/support/scripted_model.h"

namespace brigade::tests {

struct EngineBedConfig {
  runtime::EngineConfig engine;
  runtime::StepLimits limits{
      .max_rows = 64, .max_sequences = 32, .max_blocks = 64, .max_logit_rows = 32};
  int microbatches = 1;
  int blocks = 200;
  int block_size = 4;
  int vocab = 97;
  std::vector<int32_t> eos_tokens;
  std::function<std::unique_ptr<runtime::DraftSource>()> drafts;  // none: the engine's own
  // Before the engine starts.
  std::function<void(ScriptedWorld&)> prepare;
};

struct SampleAnswer {
  std::vector<int32_t> tokens;
  std::vector<std::pair<int32_t, double>> logprobs;  // every number of every event, in order
  runtime::FinishReason finish = runtime::FinishReason::kNone;
  absl::Status error;
  runtime::SequenceUsage usage;
};

struct Answer {
  absl::Status status;  // of submit, or the first error
  std::vector<SampleAnswer> samples;
  // Tokens and log-probability bits of all samples.
  uint64_t fingerprint() const;
};

class EngineBed {
 public:
  // The engine is ready when this returns (unless `wait_ready` is false).
  explicit EngineBed(const EngineBedConfig& config, bool wait_ready = true);
  ~EngineBed();

  runtime::Engine& engine() { return *engine_; }
  ScriptedWorld& world() { return world_; }
  absl::StatusOr<std::shared_ptr<runtime::TokenStream>> submit(
      const runtime::GenerateRequest& request);
  Answer generate(const runtime::GenerateRequest& request);
  // Everything is back where it was: no request, no block in use, no KV read out of order.
  std::string leak();

 private:
  ScriptedWorld world_;
  std::unique_ptr<runtime::Engine> engine_;
};

// Reads a stream to its end, or to `deadline`.
Answer read_answer(runtime::TokenStream& stream, int sequences,
                   absl::Duration deadline = absl::Seconds(60));
// Polls until `condition` holds; false after `limit`.
bool eventually(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(20));
runtime::GenerateRequest request_of(std::vector<int32_t> prompt, int max_tokens);
std::vector<int32_t> some_prompt(int seed, int length, int vocab = 97);
// What the scripted model answers greedily.
std::vector<int32_t> greedy_answer(std::vector<int32_t> prompt, int max_tokens, int vocab = 97);

}  // namespace brigade::tests
