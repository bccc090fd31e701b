#include "runtime/model/model_spec.h"

namespace brigade::runtime {
namespace {

int64_t attention_parameters(const ModelSpec& spec) {
  const AttentionSpec& a = spec.attention;
  const int64_t q = int64_t{a.heads} * a.head_dim, kv = int64_t{a.kv_heads} * a.head_dim;
  int64_t count = (q + 2 * kv) * spec.hidden + q * spec.hidden;
  if (a.qkv_bias) count += q + 2 * kv;
  if (a.output_bias) count += spec.hidden;
  return count;
}

// `experts`: how many of the routed experts count.
int64_t ffn_parameters(const ModelSpec& spec, const LayerSpec& layer, int experts) {
  const int64_t hidden = spec.hidden;
  if (!layer.moe) return 3 * hidden * layer.dense_ffn;
  const MoeSpec& moe = *layer.moe;
  int64_t count = hidden * moe.rule.num_experts + 3 * hidden * moe.ffn * experts;
  if (moe.selection_bias) count += moe.rule.num_experts;
  count += 3 * hidden * moe.shared_ffn;
  if (moe.shared_gate) count += hidden;
  return count;
}

int64_t parameters(const ModelSpec& spec, bool active) {
  const int64_t table = int64_t{spec.vocab} * spec.hidden;
  // A token reads one row of the embedding but all of the output matrix.
  int64_t count = spec.hidden + table;
  if (!spec.tied_embeddings) count += active ? spec.hidden : table;
  for (const LayerSpec& layer : spec.layers) {
    const int experts = !layer.moe ? 0
                        : active   ? layer.moe->rule.top_k
                                   : layer.moe->rule.num_experts;
    count += 2 * int64_t{spec.hidden} + attention_parameters(spec) +
             ffn_parameters(spec, layer, experts);
  }
  return count;
}

}  // namespace

int64_t ModelSpec::parameters_total() const { return parameters(*this, false); }
int64_t ModelSpec::parameters_active() const { return parameters(*this, true); }

}  // namespace brigade::runtime
