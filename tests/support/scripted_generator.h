// A Generator that emits known tokens through the real commit and the real bounded queue, with no
// model behind it: for tests of everything above the engine. One thread plays the step loop.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "runtime/engine/generator.h"
#include "runtime/stream/commit.h"
#include "runtime/tokenizer/tokenizer.h"

namespace brigade::tests {

struct ScriptedOptions {
  int max_running = 8;  // requests
  int max_waiting = 64;
  size_t stream_capacity = 16;
  int kv_blocks = 1 << 16;
  absl::Duration step_time = absl::ZeroDuration();
  std::vector<int32_t> eos_tokens;
  const runtime::Tokenizer* tokenizer = nullptr;  // outlives the generator
  // Token number `n` of a sequence (0 the first); negative ends the sequence with DATA_LOSS, as a
  // model that gives NaN does. Empty: a token that depends on prompt, seed, sample and n.
  std::function<int32_t(const runtime::GenerateRequest&, int sample_index, int n)> script;
  int vocab_size = 256;
};

class ScriptedGenerator : public runtime::Generator {
 public:
  static constexpr int kBlockSize = 16;

  explicit ScriptedGenerator(ScriptedOptions options);
  ~ScriptedGenerator() override;

  absl::StatusOr<std::shared_ptr<runtime::TokenStream>> submit(
      runtime::GenerateRequest request) override;
  runtime::GeneratorStatus status() const override;
  void start_drain() override;
  bool idle() const override;

  void set_ready(bool ready);
  // The step loop stops making steps; status() then says it is not alive when there is work.
  void freeze(bool frozen);

 private:
  struct Running {
    runtime::GenerateRequest request;
    std::vector<std::unique_ptr<runtime::SequenceOutput>> sequences;
    std::shared_ptr<runtime::TokenStream> stream;
    absl::Time submitted;
  };

  void run();
  // With mutex_ held.
  void step();
  bool advance(Running& running);  // true when it has ended
  bool has_work() const { return !waiting_.empty() || !running_.empty(); }
  int blocks_in_use() const;
  void end_all(Running& running, runtime::FinishReason reason, const absl::Status& error);
  int32_t token_of(const Running& running, int sample_index, int n) const;

  const ScriptedOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Running>> waiting_;
  std::vector<std::unique_ptr<Running>> running_;
  runtime::GeneratorStatus counters_;
  bool ready_ = true, draining_ = false, frozen_ = false, stopping_ = false;
  bool woken_ = false;
  std::thread thread_;
};

}  // namespace brigade::tests
