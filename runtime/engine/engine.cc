#include "runtime/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

AdmissionLimits admission_limits(const EngineConfig& config, const EngineParts& parts) {
  return {.max_running_sequences = config.max_running_sequences,
          .max_waiting_requests = config.max_waiting_requests,
          .max_waiting_tokens = config.max_waiting_tokens,
          .kv_blocks = parts.kv.num_blocks,
          .block_size = parts.kv.block_size,
          .max_blocks_per_sequence = parts.models[0]->limits().max_blocks};
}

absl::Status check_parts(const EngineParts& parts) {
  if (parts.models.empty())
    return absl::InvalidArgumentError("the engine needs at least one model");
  if (parts.kv.num_blocks < 1 || parts.kv.block_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("the KV cache has ", parts.kv.num_blocks,
                                                   " blocks of ", parts.kv.block_size,
                                                   " positions, must have at least one of one"));
  }
  const StepLimits& limits = parts.models[0]->limits();
  const int smallest =
      std::min({limits.max_rows, limits.max_sequences, limits.max_blocks, limits.max_logit_rows});
  if (smallest >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a step must have at least one row, sequence, block and logit row");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::create(const EngineConfig& config,
                                                       EngineParts parts) {
  RETURN_IF_ERROR(validate(config));
  RETURN_IF_ERROR(check_parts(parts));
  return std::unique_ptr<Engine>(new Engine(config, std::move(parts)));
}

Engine::Engine(const EngineConfig& config, EngineParts parts)
    : config_(config),
      kv_(parts.kv),
      tokenizer_(parts.tokenizer),
      eos_tokens_(parts.eos_tokens),
      vocab_(parts.models[0]->vocab()),
      drafts_(parts.drafts != nullptr ? std::move(parts.drafts)
                                      : std::make_unique<PromptLookupSource>()),
      waker_(std::make_shared<kernels::Waker>()),
      inbox_(admission_limits(config, parts)),
      board_(config.stall_limit),
      loop_(config, std::move(parts.models), parts.kv,
            {.eos_tokens = eos_tokens_, .drafts = drafts_.get(), .clock = std::move(parts.clock)},
            &inbox_, &board_, waker_.get(), std::move(parts.sleep)) {}

Engine::~Engine() { stop(); }

void Engine::start() {
  if (thread_.joinable() || stopping_) return;
  inbox_.close_for("the warm-up step has not run yet");
  board_.set_not_ready("the warm-up step has not run yet");
  thread_ = std::thread([this] { run(); });
}

void Engine::stop() {
  stopping_ = true;
  inbox_.stop();
  waker_->wake();
  if (thread_.joinable()) thread_.join();
}

void Engine::run() {
  if (const absl::Status warm = loop_.warm_up(); warm.ok()) {
    board_.set_ready();
    inbox_.open();
  } else {
    board_.set_not_ready(std::string(warm.message()));
    inbox_.close_for(std::string(warm.message()));
  }
  while (!stopping_) {
    if (loop_.turn(absl::Now())) continue;
    loop_.sleep(absl::Now());
  }
  loop_.end_all(absl::UnavailableError("the server is stopping; retry elsewhere"));
}

absl::StatusOr<std::shared_ptr<TokenStream>> Engine::submit(GenerateRequest request) {
  const absl::Time now = absl::Now();
  if (request.num_sequences > static_cast<int>(TokenStream::kMaxSequences)) {
    return absl::InvalidArgumentError(absl::StrCat("num_sequences is ", request.num_sequences,
                                                   ", must be at most ",
                                                   TokenStream::kMaxSequences));
  }
  RETURN_IF_ERROR(inbox_.check(request));
  // A step may end all sequences of a request at once.
  const int capacity = std::max(config_.stream_capacity, request.num_sequences);
  auto stream = std::make_shared<TokenStream>(static_cast<size_t>(capacity),
                                              [waker = waker_] { waker->wake(); });
  auto active = std::make_unique<ActiveRequest>(std::move(request), stream, eos_tokens_, tokenizer_,
                                                kv_.block_size, now);
  active->add_speculation(config_, vocab_, drafts_->max_law_entries());
  RETURN_IF_ERROR(inbox_.deliver(std::move(active)));
  waker_->wake();
  return stream;
}

GeneratorStatus Engine::status() const {
  GeneratorStatus status;
  const int live = inbox_.live_requests();
  board_.fill(&status, live > 0, absl::Now());
  status.draining = inbox_.draining();
  status.kv_blocks_total = kv_.num_blocks;
  status.requests_accepted = inbox_.accepted();
  status.requests_rejected = inbox_.rejected();
  return status;
}

void Engine::start_drain() {
  inbox_.start_drain();
  waker_->wake();
}

bool Engine::idle() const { return inbox_.live_requests() == 0; }

}  // namespace brigade::runtime
