#include "tests/support/scripted_generator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace brigade::tests {

using runtime::FinishReason;
using runtime::GenerateRequest;
using runtime::SequenceOutput;
using runtime::TokenEvent;
using runtime::TokenLogprob;
using runtime::TokenStream;

ScriptedGenerator::ScriptedGenerator(ScriptedOptions options)
    : options_(std::move(options)), thread_([this] { run(); }) {}

ScriptedGenerator::~ScriptedGenerator() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::StatusOr<std::shared_ptr<TokenStream>> ScriptedGenerator::submit(GenerateRequest request) {
  std::lock_guard lock(mutex_);
  if (draining_) return absl::UnavailableError("draining");
  if (!ready_) return absl::UnavailableError("not ready");
  const bool starts_now =
      waiting_.empty() && static_cast<int>(running_.size()) < options_.max_running;
  if (!starts_now && static_cast<int>(waiting_.size()) >= options_.max_waiting) {
    ++counters_.requests_rejected;
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", waiting_.size(), " requests wait; try again later"));
  }
  ++counters_.requests_accepted;
  auto running = std::make_unique<Running>();
  running->request = std::move(request);
  running->submitted = absl::Now();
  running->stream = std::make_shared<TokenStream>(options_.stream_capacity, [this] {
    std::lock_guard wake_lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  });
  for (int i = 0; i < running->request.num_sequences; ++i) {
    running->sequences.push_back(std::make_unique<SequenceOutput>(
        running->request, i, options_.eos_tokens, options_.tokenizer));
  }
  auto stream = running->stream;
  if (starts_now) {
    running_.push_back(std::move(running));
  } else {
    waiting_.push_back(std::move(running));
  }
  woken_ = true;
  changed_.notify_all();
  return stream;
}

runtime::GeneratorStatus ScriptedGenerator::status() const {
  std::lock_guard lock(mutex_);
  runtime::GeneratorStatus status = counters_;
  status.ready = ready_;
  if (!ready_) status.not_ready_reason = "warming up";
  status.draining = draining_;
  status.step_loop_alive = !(frozen_ && has_work());
  status.waiting_requests = static_cast<int>(waiting_.size());
  status.running_sequences = 0;
  for (const auto& running : running_) {
    status.running_sequences += static_cast<int>(running->sequences.size());
  }
  status.kv_blocks_total = options_.kv_blocks;
  status.kv_blocks_in_use = blocks_in_use();
  status.expert_rows = {{3, 1, 0, 4}, {2, 2, 2, 2}};
  return status;
}

void ScriptedGenerator::start_drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

bool ScriptedGenerator::idle() const {
  std::lock_guard lock(mutex_);
  return !has_work();
}

void ScriptedGenerator::set_ready(bool ready) {
  std::lock_guard lock(mutex_);
  ready_ = ready;
}

void ScriptedGenerator::freeze(bool frozen) {
  std::lock_guard lock(mutex_);
  frozen_ = frozen;
  woken_ = true;
  changed_.notify_all();
}

int ScriptedGenerator::blocks_in_use() const {
  int blocks = 0;
  for (const auto& running : running_) {
    for (const auto& sequence : running->sequences) {
      const size_t tokens = running->request.prompt.size() + sequence->tokens().size();
      blocks += static_cast<int>((tokens + kBlockSize - 1) / kBlockSize);
    }
  }
  return blocks;
}

void ScriptedGenerator::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    // 5 ms at most, so that deadlines are seen also while every stream is full.
    if (!woken_) changed_.wait_for(lock, std::chrono::milliseconds(5));
    woken_ = false;
    if (frozen_ || stopping_) continue;
    step();
    if (options_.step_time > absl::ZeroDuration() && has_work()) {
      changed_.wait_for(lock, absl::ToChronoNanoseconds(options_.step_time),
                        [this] { return stopping_; });
    }
  }
}

void ScriptedGenerator::step() {
  while (!waiting_.empty() && static_cast<int>(running_.size()) < options_.max_running) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  // A waiting request can be cancelled or expire as well.
  std::erase_if(waiting_, [this](const auto& waiting) {
    const bool gone = waiting->stream->cancelled() || waiting->request.deadline <= absl::Now();
    return gone && advance(*waiting);
  });
  std::erase_if(running_, [this](const auto& running) { return advance(*running); });
  ++counters_.steps;
}

void ScriptedGenerator::end_all(Running& running, FinishReason reason, const absl::Status& error) {
  for (auto& sequence : running.sequences) {
    if (!sequence->finished()) running.stream->push(sequence->finish(reason, error));
  }
  running.stream->close();
}

bool ScriptedGenerator::advance(Running& running) {
  if (running.stream->cancelled()) {
    ++counters_.requests_cancelled;
    end_all(running, FinishReason::kCancelled, absl::CancelledError("cancelled"));
    return true;
  }
  if (running.request.deadline <= absl::Now()) {
    ++counters_.requests_expired;
    end_all(running, FinishReason::kCancelled,
            absl::DeadlineExceededError("the deadline passed before the answer was complete"));
    return true;
  }
  bool all_finished = true;
  for (size_t i = 0; i < running.sequences.size(); ++i) {
    SequenceOutput& sequence = *running.sequences[i];
    if (sequence.finished()) continue;
    all_finished = false;
    if (!running.stream->has_room()) {
      ++counters_.paused_for_reader;
      continue;
    }
    const int32_t token =
        token_of(running, static_cast<int>(i), static_cast<int>(sequence.tokens().size()));
    if (token < 0) {
      ++counters_.requests_failed;
      end_all(running, FinishReason::kError, absl::DataLossError("the logits hold a NaN"));
      return true;
    }
    std::optional<TokenLogprob> logprob;
    if (running.request.sampling.logprobs >= 0) {
      logprob.emplace(TokenLogprob{-0.5, 1, {}});
      for (int n = 0; n < running.request.sampling.logprobs; ++n) {
        logprob->top.emplace_back((token + n) % options_.vocab_size, -0.5 - n);
      }
    }
    TokenEvent event = sequence.commit_token(token, std::move(logprob));
    event.first_token = event.total = absl::Now() - running.submitted;
    running.stream->push(std::move(event));
    ++counters_.generated_tokens;
    woken_ = true;  // more to do at once
  }
  if (!all_finished) return false;
  ++counters_.requests_finished;
  running.stream->close();
  return true;
}

int32_t ScriptedGenerator::token_of(const Running& running, int sample_index, int n) const {
  if (options_.script) return options_.script(running.request, sample_index, n);
  uint64_t hash = running.request.sampling.seed * 31 + static_cast<uint64_t>(sample_index);
  for (const int32_t token : running.request.prompt) hash = hash * 1000003 + token;
  hash = (hash + static_cast<uint64_t>(n)) * 0x9E3779B97F4A7C15ull;
  return static_cast<int32_t>((hash >> 33) % static_cast<uint64_t>(options_.vocab_size));
}

}  // namespace brigade::tests
