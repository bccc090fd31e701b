#include "runtime/model/config_keys.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;

// Words of a text as a set, made once.
const std::set<std::string>& words(const char* text) {
  return *new std::set<std::string>(
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty()));
}

constexpr char kHarmless[] = R"(
    _name_or_path architectures model_type transformers_version transformers.js_config
    tokenizer_class torch_dtype dtype attn_implementation _attn_implementation
    experts_implementation _experts_implementation
    attention_dropout hidden_dropout hidden_dropout_prob embd_pdrop resid_pdrop
    router_aux_loss_coef router_jitter_noise input_jitter_noise aux_loss_alpha seq_aux ep_size
    initializer_range gradient_checkpointing chunk_size_feed_forward pretraining_tp
    finetuning_task problem_type task_specific_params id2label label2id prefix
    output_attentions output_hidden_states output_router_logits return_dict
    return_dict_in_generate use_cache keys_to_ignore_at_inference max_window_layers
    pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id)";

// Keys that change the maths unless they are null, false or empty.
constexpr char kChanging[] = R"(
    attention_bias qkv_bias clip_qkv attention_multiplier attn_logit_softcapping
    query_pre_attn_scalar use_qk_norm qk_norm qk_layernorm attention_chunk_size sliding_window
    use_sliding_window layer_types alibi attention_sinks attn_temperature_tuning floor_scale
    scale_attn_by_inverse_layer_idx kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim
    v_head_dim index_topk hybrid_layer_pattern pruned_heads
    is_encoder_decoder is_decoder add_cross_attention cross_attention_hidden_size
    use_parallel_residual parallel_attn
    no_rope_layers no_rope_layer_interval rotary_dim rope_interleaved rope_local_base_freq
    original_max_position_embeddings
    mlp_bias lm_head_bias layer_norm_eps layer_norm_epsilon final_logit_softcapping scale_depth
    dim_model_base type_vocab_size vision_config text_config audio_config
    quantization_config compression_config
    moe_intermediate_size topk_method mlp_only_layers use_routing_bias moe_router_bias
    expert_capacity capacity_factor)";

// Keys that have values, beside those, at which they change nothing.
const std::map<std::string, json>& changing_unless() {
  static const auto& keys =
      *new std::map<std::string, json>{{"scale_attn_weights", json::array({true})},
                                       {"partial_rotary_factor", json::array({1})},
                                       {"rotary_pct", json::array({1})},
                                       {"position_embedding_type", json::array({"rope"})},
                                       {"hidden_activation", json::array({"silu"})},
                                       {"norm_type", json::array({"rms"})},
                                       {"logit_scale", json::array({1})},
                                       {"logits_scaling", json::array({1})},
                                       {"embedding_multiplier", json::array({1})},
                                       {"residual_multiplier", json::array({1})},
                                       {"scale_emb", json::array({1})},
                                       {"num_nextn_predict_layers", json::array({0})},
                                       // Routing.
                                       {"num_experts", json::array({0})},
                                       {"num_local_experts", json::array({0})},
                                       {"n_routed_experts", json::array({0})},
                                       {"n_shared_experts", json::array({0})},
                                       {"num_shared_experts", json::array({0})},
                                       {"num_experts_per_tok", json::array({0})},
                                       {"shared_expert_intermediate_size", json::array({0})},
                                       {"shared_intermediate_size", json::array({0})},
                                       {"scoring_func", json::array({"softmax"})},
                                       {"router_scoring_func", json::array({"softmax"})},
                                       {"routed_scaling_factor", json::array({1})},
                                       {"n_group", json::array({0, 1})},
                                       {"topk_group", json::array({0, 1})},
                                       {"first_k_dense_replace", json::array({0})},
                                       {"moe_layer_freq", json::array({1})},
                                       {"decoder_sparse_step", json::array({1})},
                                       {"interleave_moe_layer_step", json::array({1})},
                                       {"norm_topk_prob", json::array({true})}};
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
  static const std::set<std::string>& harmless = words(kHarmless);
  static const std::set<std::string>& changing = words(kChanging);
  if (harmless.count(key) != 0) return KeyMeaning::kHarmless;
  // The one switch whose false is not the same as its absence.
  if (key == "norm_topk_prob" && value == false) return KeyMeaning::kChangesMaths;
  const auto found = changing_unless().find(key);
  const json neutral = found != changing_unless().end() ? found->second : json::array();
  if (found != changing_unless().end() || changing.count(key) != 0 || sounds_like_maths(key)) {
    return is_neutral(value, neutral) ? KeyMeaning::kNeutral : KeyMeaning::kChangesMaths;
  }
  return KeyMeaning::kUnknown;
}

}  // namespace brigade::runtime
