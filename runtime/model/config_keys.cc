#include "runtime/model/config_keys.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "absl/strings/match.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;

const std::set<std::string_view>& harmless_keys() {
  static const auto& keys = *new std::set<std::string_view>{
      "_name_or_path", "architectures", "attention_dropout", "attn_implementation",
      "_attn_implementation", "dtype", "torch_dtype", "embd_pdrop", "finetuning_task",
      "gradient_checkpointing", "hidden_dropout", "hidden_dropout_prob", "id2label", "label2id",
      "initializer_range", "input_jitter_noise", "max_window_layers", "model_type",
      "output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id",
      "pretraining_tp", "problem_type", "resid_pdrop", "return_dict", "return_dict_in_generate",
      "router_aux_loss_coef", "router_jitter_noise", "task_specific_params", "tokenizer_class",
      "transformers_version", "unk_token_id", "use_cache", "_experts_implementation",
      "experts_implementation", "aux_loss_alpha", "seq_aux", "ep_size", "transformers.js_config",
      "sep_token_id", "cls_token_id", "mask_token_id", "prefix", "chunk_size_feed_forward",
      "keys_to_ignore_at_inference"};
  return keys;
}

// Keys that change the maths, with the values at which they do not. null, false, {} and [] are
// neutral for every one of them.
const std::map<std::string_view, json>& maths_keys() {
  static const json none = json::array();
  static const auto& keys = *new std::map<std::string_view, json>{
      // Attention.
      {"attention_bias", none}, {"qkv_bias", none}, {"clip_qkv", none}, {"attention_multiplier", none},
      {"attn_logit_softcapping", none}, {"query_pre_attn_scalar", none}, {"use_qk_norm", none},
      {"qk_norm", none}, {"qk_layernorm", none}, {"attention_chunk_size", none},
      {"sliding_window", none}, {"use_sliding_window", none}, {"layer_types", none},
      {"no_rope_layers", none}, {"no_rope_layer_interval", none}, {"alibi", none},
      {"attention_sinks", none}, {"attn_temperature_tuning", none}, {"floor_scale", none},
      {"scale_attn_weights", json::array({true})}, {"scale_attn_by_inverse_layer_idx", none},
      {"kv_lora_rank", none}, {"q_lora_rank", none}, {"qk_nope_head_dim", none},
      {"qk_rope_head_dim", none}, {"v_head_dim", none}, {"index_topk", none},
      {"is_encoder_decoder", none}, {"is_decoder", none}, {"add_cross_attention", none},
      {"cross_attention_hidden_size", none}, {"use_parallel_residual", none}, {"parallel_attn", none},
      // Rope.
      {"partial_rotary_factor", json::array({1})}, {"rotary_pct", json::array({1})},
      {"rotary_dim", none}, {"rope_interleaved", none}, {"rope_local_base_freq", none},
      {"original_max_position_embeddings", none}, {"position_embedding_type", json::array({"rope"})},
      // Feed forward, norms, output.
      {"mlp_bias", none}, {"lm_head_bias", none}, {"hidden_activation", json::array({"silu"})},
      {"norm_type", json::array({"rms"})}, {"layer_norm_eps", none}, {"layer_norm_epsilon", none},
      {"final_logit_softcapping", none}, {"logit_scale", json::array({1})},
      {"logits_scaling", json::array({1})}, {"embedding_multiplier", json::array({1})},
      {"residual_multiplier", json::array({1})}, {"scale_depth", none}, {"scale_emb", json::array({1})},
      {"dim_model_base", none}, {"num_nextn_predict_layers", json::array({0})},
      {"type_vocab_size", none}, {"pruned_heads", none}, {"vision_config", none},
      {"text_config", none}, {"audio_config", none}, {"quantization_config", none},
      {"compression_config", none}, {"hybrid_layer_pattern", none},
      // Routing.
      {"num_experts", json::array({0})}, {"num_local_experts", json::array({0})},
      {"n_routed_experts", json::array({0})}, {"n_shared_experts", json::array({0})},
      {"num_shared_experts", json::array({0})}, {"num_experts_per_tok", json::array({0})},
      {"moe_intermediate_size", none}, {"shared_expert_intermediate_size", json::array({0})},
      {"shared_intermediate_size", json::array({0})}, {"scoring_func", json::array({"softmax"})},
      {"router_scoring_func", json::array({"softmax"})}, {"topk_method", none},
      {"routed_scaling_factor", json::array({1})}, {"n_group", json::array({0, 1})},
      {"topk_group", json::array({0, 1})}, {"first_k_dense_replace", json::array({0})},
      {"moe_layer_freq", json::array({1})}, {"decoder_sparse_step", json::array({1})},
      {"interleave_moe_layer_step", json::array({1})}, {"mlp_only_layers", none},
      {"norm_topk_prob", json::array({true})}, {"use_routing_bias", none}, {"moe_router_bias", none},
      {"expert_capacity", none}, {"capacity_factor", none}};
  return keys;
}

bool is_neutral(const json& value, const json& neutral_values) {
  if (value.is_null() || value == false) return true;
  if (value.is_structured() && value.empty()) return true;
  if (value.is_array()) {  // layer_types
    return std::all_of(value.begin(), value.end(),
                       [](const json& element) { return element == "full_attention"; });
  }
  return std::any_of(neutral_values.begin(), neutral_values.end(),
                     [&](const json& neutral) { return value == neutral; });
}

// Words that name a bound, a scale or a switch of the forward pass in families yet to come.
bool sounds_like_maths(const std::string& key) {
  constexpr std::array<std::string_view, 14> kWords = {
      "limit", "clamp",  "clip", "softcap", "multiplier", "scaling", "_norm",
      "rope",  "rotary", "lora", "window",  "swiglu",     "sink",    "quant"};
  return std::any_of(kWords.begin(), kWords.end(), [&](std::string_view word) {
    return absl::StrContains(key, absl::string_view(word.data(), word.size()));
  });
}

}  // namespace

KeyMeaning classify_config_key(const std::string& key, const json& value) {
  if (harmless_keys().count(key) != 0) return KeyMeaning::kHarmless;
  const auto found = maths_keys().find(key);
  if (found != maths_keys().end()) {
    // norm_topk_prob false is the one switch whose absence and false differ.
    if (key == "norm_topk_prob" && value == false) return KeyMeaning::kChangesMaths;
    return is_neutral(value, found->second) ? KeyMeaning::kNeutral : KeyMeaning::kChangesMaths;
  }
  if (sounds_like_maths(key)) {
    return is_neutral(value, json::array()) ? KeyMeaning::kNeutral : KeyMeaning::kChangesMaths;
  }
  return KeyMeaning::kUnknown;
}

}  // namespace brigade::runtime
