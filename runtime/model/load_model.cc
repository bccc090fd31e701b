#include "runtime/model/load_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "expert_parallel/exchange/local_exchange.h"
#include "kernels/core/status.h"
#include "kernels/ops/moe.h"
#include "runtime/model/config_reader.h"

namespace brigade::runtime {
namespace {

absl::Status validate_routing(const std::string& folder, const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    const absl::Status status = kernels::validate(layer.moe->rule);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, "/config.json: routing: ", std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> choose_context(const std::string& folder, const ModelSpec& spec, int wanted) {
  if (wanted < 0 || wanted > spec.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": a context of ", wanted,
                                                   " was asked for, config.json has ",
                                                   "max_position_embeddings ", spec.max_positions));
  }
  return wanted == 0 ? spec.max_positions : wanted;
}

absl::Status upload(const OpenedModel& opened, kernels::Device& device, const LoadOptions& options,
                    LoadedModel& model) {
  ASSIGN_OR_RETURN(const auto staged, kernels::StagedUpload::create(device));
  WeightUploader uploader(*staged, progress_total(opened.tensors, options.load_experts),
                          options.on_progress);
  ASSIGN_OR_RETURN(model.weights,
                   upload_weights(*model.spec, opened.tensors, model.max_context, uploader));
  ASSIGN_OR_RETURN(model.experts, expert_geometry(*model.spec, opened.tensors, options.wire_dtype));
  if (model.experts.moe_layers == 0) return uploader.finish();
  ASSIGN_OR_RETURN(model.shard, expert_parallel::ExpertShard::create(device, model.experts));
  if (!options.load_experts) return uploader.finish();
  return load_experts(opened.tensors, *model.shard, uploader);
}

absl::Status make_passes(kernels::Device& device, const LoadOptions& options, LoadedModel& model) {
  const ExchangeFactory make_exchange =
      options.make_exchange ? options.make_exchange : expert_parallel::make_local_exchange;
  for (int i = 0; i < options.microbatches; ++i) {
    std::unique_ptr<expert_parallel::Exchange> exchange;
    if (model.shard != nullptr) {
      ASSIGN_OR_RETURN(exchange, make_exchange(device, *model.shard, options.limits.max_rows));
    }
    ASSIGN_OR_RETURN(auto pass, ForwardPass::create(device, *model.spec, *model.weights, *model.kv,
                                                    std::move(exchange), options.limits,
                                                    options.graphs));
    model.passes.push_back(std::move(pass));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpenedModel> open_model(const std::string& folder) {
  OpenedModel opened;
  ASSIGN_OR_RETURN(ConfigReading reading, read_config(folder));
  RETURN_IF_ERROR(validate_routing(folder, reading.spec));
  opened.spec = std::move(reading.spec);
  opened.notes = std::move(reading.notes);
  ASSIGN_OR_RETURN(opened.checkpoint, Checkpoint::open(folder));
  opened.notes.insert(opened.notes.end(), opened.checkpoint->notes().begin(),
                      opened.checkpoint->notes().end());
  ASSIGN_OR_RETURN(opened.tensors, resolve(opened.spec, *opened.checkpoint));
  return opened;
}

absl::StatusOr<LoadedModel> load_model(const std::string& folder, kernels::Device& device,
                                       const LoadOptions& options) {
  ASSIGN_OR_RETURN(OpenedModel opened, open_model(folder));
  LoadedModel model;
  ASSIGN_OR_RETURN(model.max_context, choose_context(folder, opened.spec, options.max_context));
  model.spec = std::make_unique<ModelSpec>(std::move(opened.spec));
  model.notes = std::move(opened.notes);
  RETURN_IF_ERROR(upload(opened, device, options, model));
  ASSIGN_OR_RETURN(model.kv, KvCache::create(device, *model.spec, options.kv));
  RETURN_IF_ERROR(make_passes(device, options, model));
  return model;
}

}  // namespace brigade::runtime
