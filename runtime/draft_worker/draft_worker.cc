#include "runtime/draft_worker/draft_worker.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/build_version.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/model/load_pace.h"
#include "runtime/speculative/vocabulary.h"
#include "spdlog/spdlog.h"

namespace brigade::runtime::draft_worker {
namespace {

constexpr int kBlockSize = 16;

std::function<uint64_t()> random_source() {
  return [engine = std::mt19937_64(std::random_device()())]() mutable { return engine(); };
}

absl::Status check_draft(const DraftWorkerConfig& config, const OpenedModel& opened,
                         const Tokenizer& tokenizer) {
  for (const LayerSpec& layer : opened.spec.layers) {
    if (!layer.moe) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--model ", config.model, " is a mixture of experts; a draft must be dense"));
  }
  if (tokenizer.vocab_size() > opened.spec.vocab) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.model, "/tokenizer.json: has token id ", tokenizer.vocab_size() - 1,
                     ", config.json has vocab_size ", opened.spec.vocab));
  }
  if (config.max_context > opened.spec.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("--max-context ", config.max_context,
                                                   ": the model has ", opened.spec.max_positions,
                                                   " (config.json, max_position_embeddings)"));
  }
  return absl::OkStatus();
}

}  // namespace

DraftWorker::DraftWorker(const DraftWorkerConfig& config) : config_(config) {}

DraftWorker::~DraftWorker() = default;

absl::StatusOr<std::unique_ptr<DraftWorker>> DraftWorker::create(const DraftWorkerConfig& config) {
  std::unique_ptr<DraftWorker> worker(new DraftWorker(config));
  RETURN_IF_ERROR(worker->load());
  return worker;
}

absl::Status DraftWorker::load() {
  ASSIGN_OR_RETURN(tokenizer_, Tokenizer::load(config_.model + "/tokenizer.json"));
  LoadOptions options;
  options.kv = {.block_size = kBlockSize, .memory_bytes = config_.kv_memory_bytes};
  int context = config_.max_context;
  {
    ASSIGN_OR_RETURN(const OpenedModel opened, open_model(config_.model));
    RETURN_IF_ERROR(check_draft(config_, opened, *tokenizer_));
    if (context == 0) context = opened.spec.max_positions;
    const int max_blocks = (context + kBlockSize - 1) / kBlockSize;
    // No more than all sequences can fill.
    const int64_t useful =
        int64_t{max_blocks} * config_.max_sequences * kv_bytes_per_block(opened.spec, options.kv);
    options.kv.memory_bytes = std::min(options.kv.memory_bytes, useful);
    options.limits = {.max_rows = std::max(config_.token_budget, config_.max_sequences),
                      .max_sequences = config_.max_sequences,
                      .max_blocks = max_blocks,
                      .max_logit_rows = config_.max_sequences};
    options.max_context = context;
  }
  options.graphs = {.on = wants_graphs(config_.device),
                    .warn = [](const std::string& sentence) { spdlog::warn("{}", sentence); }};
  ASSIGN_OR_RETURN(device_, open_device(config_.device, config_.threads));
  options.on_progress = log_load_progress([](const std::string& line) { spdlog::info("{}", line); });
  ASSIGN_OR_RETURN(model_, load_model(config_.model, *device_, options));
  const KvGeometry& kv = model_.kv->geometry();
  spdlog::info("KV cache: {} blocks of {} positions, {} bytes each", kv.num_blocks, kv.block_size,
               kv.bytes_per_block);
  // Ids of the tokenizer only: rows of the model beyond are padding.
  const DraftEngineOptions engine{
      .limits = {.vocab = tokenizer_->vocab_size(), .max_context = context},
      .max_sequences = config_.max_sequences};
  engine_ = std::make_unique<DraftEngine>(*model_.passes.front(), kv, engine, outbox_);
  hello_ = {.worker_id = config_.name,
            .build_version = kBuildVersion,
            .vocabulary_hash = tokenizer_->vocabulary_hash(),
            .vocabulary_size = tokenizer_->vocab_size(),
            .max_sequences = config_.max_sequences,
            .max_context = context};
  session_.emplace(SessionConfig{.coordinator = config_.dial.address,
                                 .vocabulary_hash = hello_.vocabulary_hash,
                                 .rejoin_timeout = config_.rejoin_timeout,
                                 .random = random_source()});
  return absl::OkStatus();
}

void DraftWorker::ask_stop(const std::string& reason) { post(Stop{reason}); }

void DraftWorker::post(Event event) {
  {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  waker_.wake();
}

std::optional<DraftWorker::Event> DraftWorker::take_event() {
  std::lock_guard lock(mutex_);
  if (events_.empty()) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

int DraftWorker::run() {
  perform(session_->start(absl::Now()));
  while (!exit_code_) {
    handle_events();
    if (exit_code_) break;
    perform(session_->on_time(absl::Now()));
    write();
    if (exit_code_) break;
    if (engine_->has_work() && !outbox_.full()) {
      work();
    } else {
      waker_.wait_until(session_->next_time());
    }
  }
  stream_.reset();
  return *exit_code_;
}

// One batch step; what comes out is written at once unless a write is still under way.
void DraftWorker::work() {
  if (const absl::Status status = engine_->step(); !status.ok()) {
    spdlog::error("a draft step failed: {}", std::string(status.message()));
    perform(HangUp{});
    exit_code_ = kExitLost;
    return;
  }
  write();
}

void DraftWorker::handle_events() {
  while (std::optional<Event> event = take_event()) {
    const absl::Time now = absl::Now();
    if (auto* said = std::get_if<StreamMessage>(&*event)) {
      perform(session_->on_message(said->attempt, std::move(said->message), now));
      obeyed_ = obeyed_ || said->attempt == session_->attempt();
    } else if (auto* ended = std::get_if<StreamEnded>(&*event)) {
      perform(session_->on_stream_ended(ended->attempt, ended->why, now));
    } else {
      perform(session_->on_stop(std::get<Stop>(*event).reason));
    }
    if (exit_code_) return;
    read_on();
  }
}

// Whoever takes no answers gets no more commands in: each may make one.
void DraftWorker::read_on() {
  if (stream_ == nullptr || !obeyed_ || outbox_.full()) return;
  obeyed_ = false;
  stream_->next();
}

std::optional<DraftWorkerSays> DraftWorker::next_message() {
  if (vocabulary_from_) {
    VocabularyPart part = vocabulary_part(*tokenizer_, *vocabulary_from_);
    if (part.last) {
      vocabulary_from_.reset();
    } else {
      *vocabulary_from_ += static_cast<int>(part.tokens.size());
    }
    return part;
  }
  if (pong_) return *std::exchange(pong_, std::nullopt);
  return outbox_.take();
}

void DraftWorker::write() {
  while (stream_ != nullptr && stream_->writable()) {
    const std::optional<DraftWorkerSays> message = next_message();
    if (!message) return;
    stream_->send(*message);
    read_on();
  }
}

void DraftWorker::perform(Actions actions) {
  for (Action& action : actions) {
    std::visit([this](auto& what) { perform(what); }, action);
  }
}

void DraftWorker::perform(const Dial& action) {
  const uint64_t attempt = action.attempt;
  stream_.reset();
  obeyed_ = false;
  auto stream = DraftStream::dial(config_.dial, hello_,
                                  {.on_message =
                                       [this, attempt](DraftCoordinatorSays message) {
                                         post(StreamMessage{attempt, std::move(message)});
                                       },
                                   .on_written = [this] { waker_.wake(); },
                                   .on_ended =
                                       [this, attempt](const absl::Status& why) {
                                         post(StreamEnded{attempt, why});
                                       }});
  if (stream.ok()) {
    stream_ = *std::move(stream);
  } else {
    post(StreamEnded{attempt, stream.status()});
  }
}

void DraftWorker::perform(const HangUp&) { stream_.reset(); }

void DraftWorker::perform(const SendVocabulary&) { vocabulary_from_ = 0; }

void DraftWorker::perform(Obey& action) {
  for (DraftCommand& command : action.commands.commands) engine_->take(std::move(command));
}

void DraftWorker::perform(const Answer& action) {
  const DraftEngineCounters& counters = engine_->counters();
  pong_ = DraftPong{.number = action.ping.number,
                    .steps = counters.steps,
                    .rows = counters.rows,
                    .drafted = counters.drafted,
                    .open_sequences = engine_->open_sequences()};
}

void DraftWorker::perform(const ForgetAll&) {
  engine_->clear();
  outbox_.clear();
  pong_.reset();
  vocabulary_from_.reset();
}

void DraftWorker::perform(const Note& action) { spdlog::info("{}", action.text); }

void DraftWorker::perform(const Exit& action) {
  if (action.code == kExitOk) {
    spdlog::info("{}", action.reason);
  } else {
    spdlog::error("{}", action.reason);
  }
  exit_code_ = action.code;
}

}  // namespace brigade::runtime::draft_worker
