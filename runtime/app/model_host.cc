#include "runtime/app/model_host.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/device.h"
#include "kernels/core/status.h"
#include "runtime/app/cluster_service.h"
#include "runtime/app/draft_port.h"
#include "runtime/app/dtype_flag.h"
#include "runtime/app/logit_rows.h"
#include "runtime/engine/engine.h"
#include "runtime/model/load_model.h"
#include "runtime/speculative/draft_worker_source.h"
#include "runtime/tokenizer/tokenizer.h"
#include "spdlog/spdlog.h"

namespace brigade::runtime {
namespace {

constexpr absl::Duration kWarmUpTick = absl::Milliseconds(5);
constexpr absl::Duration kClusterTick = absl::Milliseconds(20);

// Null when the folder has no tokenizer: then the server takes token ids only.
absl::StatusOr<std::unique_ptr<Tokenizer>> load_tokenizer(const std::string& folder, int vocab) {
  const std::string path = folder + "/tokenizer.json";
  auto tokenizer = Tokenizer::load(path);
  if (tokenizer.status().code() == absl::StatusCode::kNotFound) {
    spdlog::warn("{} is missing: requests must send token ids, answers have no text", path);
    return std::unique_ptr<Tokenizer>();
  }
  RETURN_IF_ERROR(tokenizer.status());
  if ((*tokenizer)->vocab_size() > vocab) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has token id ",
                                                   (*tokenizer)->vocab_size() - 1,
                                                   ", config.json has vocab_size ", vocab));
  }
  return tokenizer;
}

absl::StatusOr<int> choose_context(const CoordinatorConfig& config, const ModelSpec& spec) {
  if (config.max_context > spec.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("--max-context ", config.max_context,
                                                   ": the model has ", spec.max_positions,
                                                   " (config.json, max_position_embeddings)"));
  }
  return config.max_context > 0 ? config.max_context : spec.max_positions;
}

std::shared_ptr<ServedModel> describe_model(const CoordinatorConfig& config, const ModelSpec& spec,
                                            int max_context, const Tokenizer* tokenizer) {
  auto served = std::make_shared<ServedModel>();
  served->name = config.name;
  served->family = spec.family;
  served->limits.vocab_size = spec.vocab;
  served->limits.max_context = max_context;
  served->layers = spec.num_layers();
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    ++served->moe_layers;
    served->experts = layer.moe->rule.num_experts;
    served->experts_per_token = layer.moe->rule.top_k;
  }
  served->parameters_total = spec.parameters_total();
  served->parameters_active = spec.parameters_active();
  served->eos_tokens = spec.eos_tokens;
  served->default_temperature = spec.default_temperature;
  served->default_top_p = spec.default_top_p;
  served->default_top_k = spec.default_top_k;
  served->default_max_tokens = config.default_max_tokens;
  served->prefix_cache = config.prefix_cache;
  served->default_speculation = config.engine.speculation;
  served->limits.max_draft_depth = std::max(1, config.engine.max_draft_depth);
  if (tokenizer != nullptr) {
    served->encode = [tokenizer](std::string_view text, bool add_special_tokens,
                                 bool parse_control_tokens) {
      return tokenizer->encode(text, {.add_special_tokens = add_special_tokens,
                                      .parse_control_tokens = parse_control_tokens});
    };
    served->piece = [tokenizer](int32_t token) { return tokenizer->token_bytes(token); };
  }
  return served;
}

// Takes as long as workers take to come and to load; a signal ends the process meanwhile. Workers report
// whole loads, but their heartbeats say how many bytes they hold.
void wait_for_experts(const ClusterService& cluster, const expert_parallel::ExpertShard& shard,
                      LoadingDisplay& display) {
  const expert_parallel::ExpertGeometry& geometry = shard.geometry();
  const auto total = static_cast<int64_t>(shard.expert_bytes()) * geometry.moe_layers *
                     geometry.experts;
  while (true) {
    const std::string reason = cluster.not_ready_reason();
    if (reason.empty()) return;
    const ClusterStatus status = cluster.status();
    int64_t held = status.coordinator_expert_bytes;
    for (const WorkerStatus& worker : status.workers) held += worker.expert_bytes;
    display.update(reason, std::min(held, total - 1), status.started ? total : 0);
    absl::SleepFor(kClusterTick);
  }
}

RemoteDraftsOptions drafts_options(const CoordinatorConfig& config, const ModelSpec& spec,
                                   int max_context) {
  RemoteDraftsOptions options;
  // The next pass's drafts may be there before this one's verdict.
  options.window = config.engine.max_draft_depth;
  options.first_depth = config.engine.max_draft_depth;
  options.limits = {.vocab = spec.vocab,
                    .max_positions = max_context,
                    .max_run_ahead = 2 * config.engine.max_draft_depth + 1};
  return options;
}

}  // namespace

// Destroyed in reverse order: the engine's thread ends before what it works on goes.
struct ModelHost::Parts {
  OpenedModel opened;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<DraftPort> drafts;        // null where no draft workers may join
  std::unique_ptr<ClusterService> cluster;  // null without workers
  LoadOptions options;
  int max_context = 0;
  std::shared_ptr<ServedModel> served;
  LoadedModel model;
  std::unique_ptr<Engine> engine;
};

ModelHost::ModelHost(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}

ModelHost::~ModelHost() { stop(); }

absl::StatusOr<std::unique_ptr<ModelHost>> ModelHost::open(const CoordinatorConfig& config) {
  auto parts = std::make_shared<Parts>();
  LoadOptions& options = parts->options;
  ASSIGN_OR_RETURN(options.kv.dtype, parse_dtype(config.kv_dtype, "--kv-dtype"));
  ASSIGN_OR_RETURN(options.wire_dtype, parse_dtype(config.cluster.wire_dtype, "--wire-dtype"));
  options.microbatches = config.cluster.microbatches;
  ASSIGN_OR_RETURN(parts->opened, open_model(config.model));
  const OpenedModel& opened = parts->opened;
  for (const std::string& note : opened.notes) spdlog::info("{}", note);
  ASSIGN_OR_RETURN(parts->max_context, choose_context(config, opened.spec));
  options.kv.block_size = config.kv_block_size;
  ASSIGN_OR_RETURN(parts->device, open_device(config.device, config.threads));
  options.kv.memory_bytes = config.kv_memory_bytes > 0
                                ? config.kv_memory_bytes
                                : static_cast<int64_t>(parts->device->free_bytes() / 4);
  // No more than all sequences can fill.
  const int max_blocks = (parts->max_context + config.kv_block_size - 1) / config.kv_block_size;
  const int64_t useful_blocks = int64_t{max_blocks} * config.engine.max_running_sequences;
  const int64_t block_bytes = kv_bytes_per_block(opened.spec, options.kv);
  options.kv.memory_bytes = std::min(options.kv.memory_bytes, useful_blocks * block_bytes);
  if (options.kv.memory_bytes < block_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("--kv-memory ", config.kv_memory_bytes,
                                                   ": one block needs ", block_bytes, " bytes"));
  }
  options.limits = {.max_rows = config.token_budget,
                    .max_sequences = config.engine.max_running_sequences,
                    .max_blocks = max_blocks,
                    .max_logit_rows =
                        logit_rows(config.engine.max_running_sequences,
                                   config.engine.max_draft_depth, config.token_budget,
                                   opened.spec.vocab)};
  options.max_context = parts->max_context;
  options.graphs = {.on = wants_graphs(config.device),
                    .warn = [](const std::string& sentence) { spdlog::warn("{}", sentence); }};
  ASSIGN_OR_RETURN(parts->tokenizer, load_tokenizer(config.model, opened.spec.vocab));
  parts->served = describe_model(config, opened.spec, parts->max_context, parts->tokenizer.get());
  parts->served->device = parts->device->name();
  parts->served->same_words = parts->device->keeps_bits();
  if (config.cluster.drafts) parts->drafts = std::make_unique<DraftPort>(parts->tokenizer.get());
  if (config.cluster.workers == 0 && parts->drafts != nullptr) {
    RETURN_IF_ERROR(parts->drafts->listen(config));
  }
  if (config.cluster.workers > 0) {
    grpc::Service* drafts = parts->drafts == nullptr ? nullptr : parts->drafts->service();
    ASSIGN_OR_RETURN(parts->cluster, ClusterService::open(config, opened, *parts->device, drafts));
    options.load_experts = false;
    options.make_exchange = parts->cluster->exchange_factory();
  }
  return std::unique_ptr<ModelHost>(new ModelHost(std::move(parts)));
}

std::shared_ptr<const ServedModel> ModelHost::served() const { return parts_->served; }

absl::Status ModelHost::load(const CoordinatorConfig& config, LoadingDisplay& display) {
  Parts& parts = *parts_;
  display.update("packing weights", 0, 0);
  parts.options.on_progress = [&display](const LoadProgress& progress) {
    display.update("packing weights", progress.bytes, progress.bytes_total);
  };
  ASSIGN_OR_RETURN(parts.model, load_model(config.model, *parts.device, parts.options));
  if (parts.cluster != nullptr) {
    parts.cluster->use(*parts.model.shard);
    wait_for_experts(*parts.cluster, *parts.model.shard, display);
  }
  const KvGeometry& kv = parts.model.kv->geometry();
  spdlog::info("KV cache: {} blocks of {} positions, {} bytes each", kv.num_blocks, kv.block_size,
               kv.bytes_per_block);
  EngineParts engine_parts;
  for (std::unique_ptr<ForwardPass>& pass : parts.model.passes) {
    engine_parts.models.push_back(std::move(pass));
  }
  engine_parts.kv = kv;
  engine_parts.tokenizer = parts.tokenizer.get();
  engine_parts.eos_tokens = parts.model.spec->eos_tokens;
  if (parts.cluster != nullptr) {
    engine_parts.sleep = [&cluster = *parts.cluster](kernels::Waker& waker, absl::Time until) {
      cluster.sleep_until(waker, until);
    };
  }
  if (parts.drafts != nullptr) {
    engine_parts.drafts = std::make_unique<DraftWorkerSource>(
        parts.drafts->links(), drafts_options(config, *parts.model.spec, parts.max_context));
  }
  ASSIGN_OR_RETURN(parts.engine, Engine::create(config.engine, std::move(engine_parts)));
  display.update("warming up", 0, 0);
  parts.engine->start();
  // The engine's own limit ends a warm-up step that hangs.
  const absl::Time deadline = absl::Now() + config.engine.warm_up_timeout + absl::Seconds(1);
  while (!parts.engine->status().ready && absl::Now() < deadline) absl::SleepFor(kWarmUpTick);
  const GeneratorStatus status = parts.engine->status();
  if (status.ready) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the warm-up step failed: ", status.not_ready_reason));
}

std::shared_ptr<Generator> ModelHost::generator() const {
  CHECK(parts_->engine != nullptr);
  return std::shared_ptr<Generator>(parts_, parts_->engine.get());
}

std::optional<ClusterStatus> ModelHost::cluster_status() const {
  if (parts_->cluster == nullptr) return std::nullopt;
  return parts_->cluster->status();
}

std::optional<DraftWorkersStatus> ModelHost::draft_status() const {
  if (parts_->drafts == nullptr) return std::nullopt;
  return DraftWorkersStatus{.workers = parts_->drafts->links().status(),
                            .counters = parts_->drafts->links().counters()};
}

void ModelHost::dismiss_workers() {
  if (parts_->cluster != nullptr) parts_->cluster->dismiss_workers();
  if (parts_->drafts != nullptr) parts_->drafts->stop();
}

void ModelHost::stop() {
  if (parts_->engine != nullptr) parts_->engine->stop();
  dismiss_workers();
  if (parts_->cluster != nullptr) parts_->cluster->stop();
}

}  // namespace brigade::runtime
