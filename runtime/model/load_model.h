// From a model folder to forward passes that are ready to run: reads and checks everything, then
// uploads. Start-up only. What goes wrong is one sentence that names file and key.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "expert_parallel/exchange/exchange.h"
#include "expert_parallel/experts/expert_shard.h"
#include "kernels/core/device.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/forward_pass.h"
#include "runtime/model/kv_cache.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/weights.h"

namespace brigade::runtime {

// Makes one microbatch's exchange; layers have at most max_rows rows.
using ExchangeFactory = std::function<absl::StatusOr<std::unique_ptr<expert_parallel::Exchange>>(
    kernels::Device& device, const expert_parallel::ExpertShard& shard, int max_rows)>;

struct LoadOptions {
  KvCacheOptions kv;
  StepLimits limits;  // of each microbatch
  int microbatches = 1;
  int max_context = 0;  // positions; 0: config.json's max_position_embeddings
  kernels::DType wire_dtype = kernels::DType::kF32;  // of expert answers; part of the numerics
  StepGraphOptions graphs;
  bool load_experts = true;       // false: the exchange reaches experts elsewhere
  ExchangeFactory make_exchange;  // empty: all experts are local
  LoadProgressCallback on_progress;
};

// A model folder read and checked, nothing uploaded. Tensors point into the checkpoint's mapping.
struct OpenedModel {
  ModelSpec spec;
  std::unique_ptr<Checkpoint> checkpoint;
  ModelTensors tensors;
  std::vector<std::string> notes;  // for the log, one line each
};
absl::StatusOr<OpenedModel> open_model(const std::string& folder);

// Owns all parts in the order in which they need each other; `device` must outlive it.
struct LoadedModel {
  std::unique_ptr<ModelSpec> spec;  // the passes refer to it
  expert_parallel::ExpertGeometry experts;
  std::unique_ptr<DeviceWeights> weights;
  std::unique_ptr<expert_parallel::ExpertShard> shard;  // null for a dense model
  std::unique_ptr<KvCache> kv;
  std::vector<std::unique_ptr<ForwardPass>> passes;  // [microbatches]
  std::vector<std::string> notes;
  int max_context = 0;
};
absl::StatusOr<LoadedModel> load_model(const std::string& folder, kernels::Device& device,
                                       const LoadOptions& options);

}  // namespace brigade::runtime
