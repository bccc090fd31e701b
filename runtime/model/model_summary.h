// What a model needs and is made of, as numbers: for `inspect`, start-up logs and tests. Pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/model/load_model.h"

namespace brigade::runtime {

struct ModelSummary {
  std::string family;
  int layers = 0, moe_layers = 0, experts = 0, top_k = 0;
  int64_t parameters_total = 0, parameters_active = 0;
  // Bytes as stored in the checkpoint, by part; an output matrix tied to the embedding is 0.
  int64_t embedding_bytes = 0, attention_bytes = 0, dense_ffn_bytes = 0, router_bytes = 0;
  int64_t expert_bytes = 0, norm_bytes = 0, output_bytes = 0;
  int64_t stored_bytes = 0;         // sum of the above
  int64_t weight_memory_bytes = 0;  // packed, as loaded: outputs padded, tied matrices twice
  int64_t rope_table_bytes = 0;     // for the whole context
  int64_t kv_bytes_per_1k_tokens_f32 = 0, kv_bytes_per_1k_tokens_bf16 = 0;
  std::vector<std::string> weight_dtypes;  // sorted, each once
  std::string rope, routing;               // one readable line each; routing "" when dense
  std::vector<int32_t> eos_tokens;
  int max_positions = 0, vocab = 0, hidden = 0;
  size_t files = 0;
};

ModelSummary summarize(const OpenedModel& model);
nlohmann::ordered_json to_json(const ModelSummary& summary);
// A table for people, one line a fact.
std::string to_text(const ModelSummary& summary);

}  // namespace brigade::runtime
