#include "tests/runtime/engine/engine_bed.h"

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace brigade::tests {

using runtime::TokenEvent;

uint64_t Answer::fingerprint() const {
  uint64_t hash = 0;
  for (const SampleAnswer& sample : samples) {
    hash = XXH3_64bits_withSeed(sample.tokens.data(), sample.tokens.size() * sizeof(int32_t), hash);
    for (const auto& [token, value] : sample.logprobs) {
      hash = XXH3_64bits_withSeed(&token, sizeof(token), hash);
      hash = XXH3_64bits_withSeed(&value, sizeof(value), hash);
    }
  }
  return hash;
}

EngineBed::EngineBed(const EngineBedConfig& config, bool wait_ready)
    : world_(config.blocks, config.block_size) {
  if (config.prepare) config.prepare(world_);
  runtime::EngineParts parts;
  for (int i = 0; i < config.microbatches; ++i) {
    parts.models.push_back(std::make_unique<ScriptedModel>(&world_, config.vocab, config.limits));
  }
  parts.kv = {.block_size = config.block_size, .num_blocks = config.blocks, .bytes_per_block = 1};
  parts.eos_tokens = config.eos_tokens;
  if (config.drafts) parts.drafts = config.drafts();
  auto engine = runtime::Engine::create(config.engine, std::move(parts));
  EXPECT_TRUE(engine.ok()) << engine.status();
  engine_ = *std::move(engine);
  engine_->start();
  if (wait_ready) {
    EXPECT_TRUE(eventually([this] { return engine_->status().ready; }));
  }
}

EngineBed::~EngineBed() {
  engine_->stop();
  EXPECT_EQ(world_.problem(), "");
}

absl::StatusOr<std::shared_ptr<runtime::TokenStream>> EngineBed::submit(
    const runtime::GenerateRequest& request) {
  return engine_->submit(request);
}

Answer EngineBed::generate(const runtime::GenerateRequest& request) {
  const auto stream = submit(request);
  if (!stream.ok()) return {.status = stream.status(), .samples = {}};
  return read_answer(**stream, request.num_sequences);
}

std::string EngineBed::leak() {
  const auto ended = [](const runtime::GeneratorStatus& status) {
    return status.requests_finished + status.requests_failed + status.requests_cancelled +
           status.requests_expired;
  };
  // Counts are published at the end of a turn, after the last request has gone.
  const auto clean = [this, &ended] {
    const runtime::GeneratorStatus status = engine_->status();
    return engine_->idle() && ended(status) == status.requests_accepted &&
           status.kv_blocks_in_use == 0 && status.running_sequences == 0 &&
           status.parked_sequences == 0 && status.waiting_requests == 0 &&
           status.waiting_tokens == 0;
  };
  if (!eventually(clean)) {
    const runtime::GeneratorStatus status = engine_->status();
    return absl::StrCat("idle ", engine_->idle(), ", blocks in use ", status.kv_blocks_in_use,
                        ", running ", status.running_sequences, ", waiting ",
                        status.waiting_requests, ", accepted ", status.requests_accepted,
                        ", ended ", ended(status));
  }
  return world_.problem();
}

Answer read_answer(runtime::TokenStream& stream, int sequences, absl::Duration deadline) {
  Answer answer;
  answer.samples.resize(static_cast<size_t>(sequences));
  const absl::Time until = absl::Now() + deadline;
  while (true) {
    absl::StatusOr<std::optional<TokenEvent>> next = stream.next(until);
    if (!next.ok()) {
      answer.status = next.status();
      return answer;
    }
    if (!next->has_value()) return answer;
    TokenEvent& event = **next;
    SampleAnswer& sample = answer.samples[static_cast<size_t>(event.sample_index)];
    if (event.token) sample.tokens.push_back(*event.token);
    if (event.logprob) {
      sample.logprobs.emplace_back(event.logprob->rank, event.logprob->logprob);
      for (const auto& entry : event.logprob->top) sample.logprobs.push_back(entry);
    }
    if (event.finish == runtime::FinishReason::kNone) continue;
    sample.finish = event.finish;
    sample.error = event.error;
    sample.usage = event.usage;
    if (answer.status.ok()) answer.status = event.error;
  }
}

bool eventually(const std::function<bool()>& condition, absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  while (!condition()) {
    if (absl::Now() > until) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

runtime::GenerateRequest request_of(std::vector<int32_t> prompt, int max_tokens) {
  runtime::GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

std::vector<int32_t> some_prompt(int seed, int length, int vocab) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i) {
    prompt.push_back(static_cast<int32_t>(extend_prefix(static_cast<uint64_t>(seed), i) %
                                          static_cast<uint64_t>(vocab)));
  }
  return prompt;
}

std::vector<int32_t> greedy_answer(std::vector<int32_t> prompt, int max_tokens, int vocab) {
  std::vector<int32_t> answer;
  for (int i = 0; i < max_tokens; ++i) {
    answer.push_back(scripted_argmax(prompt, vocab));
    prompt.push_back(answer.back());
  }
  return answer;
}

}  // namespace brigade::tests
