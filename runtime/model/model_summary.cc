#include "runtime/model/model_summary.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/ops/packed_matrix.h"
#include "runtime/model/tensor_rows.h"

namespace brigade::runtime {
namespace {

int64_t packed_size(const std::vector<const TensorView*>& parts) {
  int64_t outputs = 0;
  for (const TensorView* part : parts) outputs += part->shape[0];
  const kernels::WeightFormat format = kernels::weight_format(common_dtype(parts));
  return static_cast<int64_t>(kernels::packed_bytes(format, outputs, parts.front()->shape[1]));
}

int64_t f32_size(const TensorView& tensor) {
  int64_t bytes = sizeof(float);
  for (int64_t extent : tensor.shape) bytes *= extent;
  return tensor.present() ? bytes : 0;
}

int64_t stored(const std::vector<const TensorView*>& views) {
  int64_t bytes = 0;
  for (const TensorView* view : views) bytes += view->present() ? stored_bytes(*view) : 0;
  return bytes;
}

int64_t ffn_memory(const FfnTensors& ffn) {
  return packed_size({&ffn.gate}) + packed_size({&ffn.up}) + packed_size({&ffn.down});
}

void add_layer(const LayerTensors& layer, ModelSummary& s) {
  s.norm_bytes += stored({&layer.input_norm, &layer.post_norm});
  s.attention_bytes += stored({&layer.q, &layer.k, &layer.v, &layer.o, &layer.q_bias, &layer.k_bias,
                               &layer.v_bias, &layer.o_bias});
  s.weight_memory_bytes += packed_size({&layer.q, &layer.k, &layer.v}) + packed_size({&layer.o});
  for (const TensorView* view : {&layer.input_norm, &layer.post_norm, &layer.q_bias, &layer.k_bias,
                                 &layer.v_bias, &layer.o_bias, &layer.router_bias}) {
    s.weight_memory_bytes += f32_size(*view);
  }
  if (!layer.router.present()) {
    s.dense_ffn_bytes += stored({&layer.dense.gate, &layer.dense.up, &layer.dense.down});
    s.weight_memory_bytes += ffn_memory(layer.dense);
    return;
  }
  s.router_bytes += stored({&layer.router, &layer.router_bias});
  s.weight_memory_bytes += packed_size({&layer.router});
  for (const FfnTensors& expert : layer.experts) {
    s.expert_bytes += stored({&expert.gate, &expert.up, &expert.down});
    s.weight_memory_bytes += ffn_memory(expert);
  }
}

void add_tensors(const ModelTensors& tensors, bool tied, ModelSummary& s) {
  for (const LayerTensors& layer : tensors.layers) add_layer(layer, s);
  s.embedding_bytes = stored({&tensors.embedding});
  s.output_bytes = tied ? 0 : stored({&tensors.lm_head});
  s.norm_bytes += stored({&tensors.final_norm});
  s.weight_memory_bytes +=
      s.embedding_bytes + packed_size({&tensors.lm_head}) + f32_size(tensors.final_norm);
  s.stored_bytes = s.embedding_bytes + s.attention_bytes + s.dense_ffn_bytes + s.router_bytes +
                   s.expert_bytes + s.norm_bytes + s.output_bytes;
}

std::string rope_line(const RopeSpec& rope) {
  std::string line =
      absl::StrCat("theta ", rope.theta, ", ", rope.rotary_dim, " of each head's lanes");
  if (rope.factor != 1) {
    absl::StrAppend(&line, ", llama3 scaling by ", rope.factor, " from ",
                    rope.original_max_positions, " positions");
  }
  return line;
}

std::string routing_line(const kernels::RouterRule& rule) {
  std::string line =
      absl::StrCat(rule.scoring == kernels::RouterScoring::kSigmoid ? "sigmoid" : "softmax",
                   " over ", rule.num_experts, " experts, top ", rule.top_k,
                   rule.renormalize ? ", renormalised" : ", not renormalised");
  if (rule.num_groups > 1) {
    absl::StrAppend(&line, ", ", rule.groups_kept, " of ", rule.num_groups, " groups");
  }
  if (rule.scale != 1) absl::StrAppend(&line, ", times ", rule.scale);
  return line;
}

std::string human(int64_t bytes) {
  if (bytes >= int64_t{1} << 30) return absl::StrFormat("%.2f GiB", bytes / double(1 << 30));
  if (bytes >= 1 << 20) return absl::StrFormat("%.2f MiB", bytes / double(1 << 20));
  return absl::StrFormat("%.1f KiB", bytes / 1024.0);
}

std::string count_text(int64_t count) {
  if (count >= 1'000'000'000) return absl::StrFormat("%.2f G", count / 1e9);
  if (count >= 1'000'000) return absl::StrFormat("%.1f M", count / 1e6);
  return absl::StrFormat("%.1f k", count / 1e3);
}

}  // namespace

ModelSummary summarize(const OpenedModel& model) {
  const ModelSpec& spec = model.spec;
  ModelSummary s;
  s.family = spec.family;
  s.layers = spec.num_layers();
  s.parameters_total = spec.parameters_total();
  s.parameters_active = spec.parameters_active();
  s.rope = rope_line(spec.rope);
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    if (s.moe_layers++ > 0) continue;
    s.experts = layer.moe->rule.num_experts;
    s.top_k = layer.moe->rule.top_k;
    s.routing = routing_line(layer.moe->rule);
  }
  add_tensors(model.tensors, spec.tied_embeddings, s);
  s.rope_table_bytes = int64_t{spec.max_positions} * spec.rope.rotary_dim * int64_t{sizeof(float)};
  const auto kv_bytes = [&spec](kernels::DType dtype) {
    return kv_bytes_per_block(spec, {.dtype = dtype, .block_size = 1}) * 1000;
  };
  s.kv_bytes_per_1k_tokens_f32 = kv_bytes(kernels::DType::kF32);
  s.kv_bytes_per_1k_tokens_bf16 = kv_bytes(kernels::DType::kBF16);
  std::set<std::string> dtypes;
  for (const auto& [name, tensor] : model.checkpoint->tensors()) dtypes.insert(tensor.entry->dtype);
  s.weight_dtypes.assign(dtypes.begin(), dtypes.end());
  s.eos_tokens = spec.eos_tokens;
  s.max_positions = spec.max_positions;
  s.vocab = spec.vocab;
  s.hidden = spec.hidden;
  s.files = model.checkpoint->num_files();
  return s;
}

nlohmann::ordered_json to_json(const ModelSummary& s) {
  return {{"family", s.family},
          {"layers", s.layers},
          {"hidden", s.hidden},
          {"vocabulary", s.vocab},
          {"max_positions", s.max_positions},
          {"moe_layers", s.moe_layers},
          {"experts", s.experts},
          {"experts_per_token", s.top_k},
          {"parameters_total", s.parameters_total},
          {"parameters_active_per_token", s.parameters_active},
          {"bytes",
           {{"embedding", s.embedding_bytes},
            {"attention", s.attention_bytes},
            {"dense_ffn", s.dense_ffn_bytes},
            {"router", s.router_bytes},
            {"experts", s.expert_bytes},
            {"norms", s.norm_bytes},
            {"output", s.output_bytes},
            {"total", s.stored_bytes}}},
          {"weight_dtypes", s.weight_dtypes},
          {"files", s.files},
          {"memory",
           {{"weights_bytes", s.weight_memory_bytes},
            {"rope_tables_bytes", s.rope_table_bytes},
            {"kv_bytes_per_1000_tokens_f32", s.kv_bytes_per_1k_tokens_f32},
            {"kv_bytes_per_1000_tokens_bf16", s.kv_bytes_per_1k_tokens_bf16}}},
          {"rope", s.rope},
          {"routing", s.routing},
          {"eos_tokens", s.eos_tokens}};
}

std::string to_text(const ModelSummary& s) {
  std::string text;
  const auto line = [&text](const std::string& name, const std::string& value) {
    absl::StrAppend(&text, absl::StrFormat("%-24s %s\n", name, value));
  };
  line("family", s.family);
  line("layers", s.moe_layers == 0 ? absl::StrCat(s.layers, ", dense")
                                   : absl::StrCat(s.layers, ", of them ", s.moe_layers, " MoE"));
  line("hidden, vocabulary", absl::StrCat(s.hidden, ", ", s.vocab));
  line("parameters", absl::StrCat(count_text(s.parameters_total), " in total, ",
                                  count_text(s.parameters_active), " active per token"));
  line("stored", absl::StrCat(human(s.stored_bytes), " as ", absl::StrJoin(s.weight_dtypes, ", "),
                              " in ", s.files, s.files == 1 ? " file" : " files"));
  for (const auto& [part, bytes] :
       {std::pair<const char*, int64_t>{"  embedding", s.embedding_bytes},
        {"  attention", s.attention_bytes},
        {"  dense FFN", s.dense_ffn_bytes},
        {"  router", s.router_bytes},
        {"  experts", s.expert_bytes},
        {"  norms", s.norm_bytes},
        {"  output matrix", s.output_bytes}}) {
    if (bytes > 0) line(part, human(bytes));
  }
  line("memory, weights", human(s.weight_memory_bytes));
  line("memory, rope tables", human(s.rope_table_bytes));
  line("memory, 1000 tokens KV",
       absl::StrCat(human(s.kv_bytes_per_1k_tokens_f32), " in f32, ",
                    human(s.kv_bytes_per_1k_tokens_bf16), " in bf16 or f16"));
  line("context", absl::StrCat(s.max_positions, " positions"));
  line("rope", s.rope);
  if (!s.routing.empty()) line("routing", s.routing);
  line("end-of-sequence ids", s.eos_tokens.empty() ? "none" : absl::StrJoin(s.eos_tokens, ", "));
  return text;
}

}  // namespace brigade::runtime
