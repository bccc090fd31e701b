#include "runtime/model/config_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/status.h"
#include "kernels/ops/kv_layout.h"
#include "runtime/files/json.h"
#include "runtime/model/config_keys.h"
#include "runtime/model/config_object.h"
#include "runtime/model/rope_config.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;

// Bounds far above any published model; they keep products of sizes within 64 bits.
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxContext = 1 << 27;

// What the reference implementation of a family takes when config.json leaves a key out.
struct FamilyDefaults {
  const char* name;
  const char* architecture;
  bool moe;
  double norm_eps;
  double rope_theta;
  int max_positions;
  bool tied_embeddings;
  int kv_heads;  // 0: as many as query heads
};
constexpr FamilyDefaults kFamilies[] = {
    {"llama", "LlamaForCausalLM", false, 1e-6, 1e4, 2048, false, 0},
    {"mixtral", "MixtralForCausalLM", true, 1e-5, 1e6, 131072, false, 8},
};

const FamilyDefaults* read_family(ConfigObject& config) {
  const std::optional<std::string> family = config.text("model_type");
  if (!family) {
    config.fail("model_type", "is missing");
    return nullptr;
  }
  for (const FamilyDefaults& known : kFamilies) {
    if (known.name != *family) continue;
    const json* architectures = config.value("architectures");
    if (architectures != nullptr && *architectures != json::array({known.architecture})) {
      const std::string given = architectures->is_array() && architectures->size() == 1
                                    ? brief((*architectures)[0])
                                    : brief(*architectures);
      config.fail("architectures",
                  absl::StrCat("is ", given, ", not \"", known.architecture, "\""));
    }
    return &known;
  }
  config.fail("model_type",
              absl::StrCat("\"", family->substr(0, 60),
                           "\" is not a supported family; supported: llama, mixtral"));
  return nullptr;
}

void read_attention(ConfigObject& config, const FamilyDefaults& family, ModelSpec& spec) {
  AttentionSpec& a = spec.attention;
  a.heads = static_cast<int>(config.required_integer("num_attention_heads", 1, kMaxHeads));
  const int default_kv_heads = family.kv_heads != 0 ? family.kv_heads : a.heads;
  a.kv_heads = static_cast<int>(
      config.integer("num_key_value_heads", 1, kMaxHeads).value_or(default_kv_heads));
  if (a.heads % a.kv_heads != 0) {
    config.fail("num_key_value_heads",
                absl::StrCat(a.kv_heads, " does not divide num_attention_heads ", a.heads));
  }
  const std::optional<int64_t> head_dim = config.integer("head_dim", 1, kernels::kMaxHeadDim);
  if (!head_dim && spec.hidden % a.heads != 0) {
    config.fail("head_dim", absl::StrCat("is missing and hidden_size ", spec.hidden,
                                         " is not a multiple of num_attention_heads ", a.heads));
  }
  a.head_dim = static_cast<int>(head_dim.value_or(spec.hidden / a.heads));
  if (!family.moe) {
    a.qkv_bias = a.output_bias = config.boolean("attention_bias").value_or(false);
  } else {
    const auto window =
        static_cast<int>(config.integer("sliding_window", 1, kMaxContext).value_or(0));
    a.window = config.boolean("use_sliding_window").value_or(true) ? window : 0;
  }
  a.scale = 1 / std::sqrt(static_cast<double>(a.head_dim));
}

// Mixtral: softmax over all experts, the best top_k, renormalised to sum 1.
MoeSpec read_moe(ConfigObject& config, int ffn) {
  MoeSpec moe;
  moe.ffn = ffn;
  moe.rule.num_experts =
      static_cast<int>(config.integer("num_local_experts", 1, kernels::kMaxExperts).value_or(8));
  moe.rule.top_k = static_cast<int>(
      config.integer("num_experts_per_tok", 1, kernels::kMaxExpertsPerToken).value_or(2));
  moe.rule.scoring = kernels::RouterScoring::kSoftmax;
  moe.rule.renormalize = true;
  if (moe.rule.top_k > moe.rule.num_experts) {
    config.fail("num_experts_per_tok", absl::StrCat("is ", moe.rule.top_k, ", more than the ",
                                                    moe.rule.num_experts, " experts"));
  }
  return moe;
}

void read_layers(ConfigObject& config, const FamilyDefaults& family, ModelSpec& spec) {
  const int64_t layers = config.required_integer("num_hidden_layers", 1, kMaxLayers);
  const int ffn = static_cast<int>(config.required_integer("intermediate_size", 1, kMaxWidth));
  LayerSpec layer;
  if (family.moe) {
    layer.moe = read_moe(config, ffn);
  } else {
    layer.dense_ffn = ffn;
  }
  if (config.status().ok()) spec.layers.assign(static_cast<size_t>(layers), layer);
}

void add_eos(ConfigObject& object, ModelSpec& spec) {
  for (int64_t id : object.integers("eos_token_id", 0, spec.vocab - 1)) {
    const auto token = static_cast<int32_t>(id);
    if (std::find(spec.eos_tokens.begin(), spec.eos_tokens.end(), token) == spec.eos_tokens.end()) {
      spec.eos_tokens.push_back(token);
    }
  }
}

void read_tokens(ConfigObject& object, ModelSpec& spec) {
  add_eos(object, spec);
  if (spec.bos_token < 0) {
    spec.bos_token =
        static_cast<int32_t>(object.integer("bos_token_id", 0, spec.vocab - 1).value_or(-1));
  }
}

void read_sizes(ConfigObject& config, const FamilyDefaults& family, ModelSpec& spec) {
  spec.family = family.name;
  spec.hidden = static_cast<int>(config.required_integer("hidden_size", 1, kMaxWidth));
  spec.vocab = static_cast<int>(config.required_integer("vocab_size", 1, kMaxVocab));
  spec.max_positions = static_cast<int>(
      config.integer("max_position_embeddings", 1, kMaxContext).value_or(family.max_positions));
  spec.norm_eps = config.number("rms_norm_eps", 0, 1).value_or(family.norm_eps);
  spec.tied_embeddings = config.boolean("tie_word_embeddings").value_or(family.tied_embeddings);
  const std::optional<std::string> activation = config.text("hidden_act");
  if (activation && *activation != "silu" && *activation != "swish") {
    config.fail("hidden_act", absl::StrCat("\"", activation->substr(0, 60),
                                           "\" is not supported; supported: silu"));
  }
}

// Refuses what would change the maths; returns the keys that nobody knows.
std::vector<std::string> check_unread(ConfigObject& config, const json& values) {
  std::vector<std::string> unknown;
  for (const std::string& key : config.unread_keys()) {
    switch (classify_config_key(key, values[key])) {
      case KeyMeaning::kHarmless:
      case KeyMeaning::kNeutral:
        break;
      case KeyMeaning::kChangesMaths:
        config.fail(key.substr(0, 100), absl::StrCat("is ", brief(values[key]),
                                                     ", which changes the maths in a way "
                                                     "that is not implemented"));
        break;
      case KeyMeaning::kUnknown:
        unknown.push_back(key.substr(0, 100));
        break;
    }
  }
  return unknown;
}

// Sampling defaults count where the file says that sampling is meant; do_sample false is greedy.
absl::Status read_generation(const json& generation, const std::string& name, ModelSpec& spec) {
  ConfigObject object(generation, absl::StrCat(name, "/generation_config.json"));
  read_tokens(object, spec);
  const std::optional<bool> sample = object.boolean("do_sample");
  const std::optional<double> temperature = object.number("temperature", 0, 100);
  const std::optional<double> top_p = object.number("top_p", 0, 1);
  const std::optional<int64_t> top_k = object.integer("top_k", 0, kMaxVocab);
  if (sample && !*sample) {
    spec.default_temperature = 0;
  } else {
    spec.default_temperature = temperature;
    spec.default_top_p = top_p;
    if (top_k) spec.default_top_k = static_cast<int>(*top_k);
  }
  return object.status();
}

}  // namespace

absl::StatusOr<ConfigReading> read_config(const json& values, const json* generation,
                                          const std::string& name) {
  ConfigReading reading;
  ModelSpec& spec = reading.spec;
  ConfigObject config(values, absl::StrCat(name, "/config.json"));
  RETURN_IF_ERROR(config.status());
  const FamilyDefaults* family = read_family(config);
  RETURN_IF_ERROR(config.status());
  read_sizes(config, *family, spec);
  RETURN_IF_ERROR(config.status());
  read_attention(config, *family, spec);
  read_layers(config, *family, spec);
  read_tokens(config, spec);
  RETURN_IF_ERROR(config.status());
  ASSIGN_OR_RETURN(spec.rope, read_rope(config, spec.attention.head_dim, family->rope_theta));
  const std::vector<std::string> unknown = check_unread(config, values);
  RETURN_IF_ERROR(config.status());
  if (!unknown.empty()) {
    reading.notes.push_back(absl::StrCat(
        config.where(), ": keys that are not known and not used: ", absl::StrJoin(unknown, ", ")));
  }
  if (generation != nullptr) RETURN_IF_ERROR(read_generation(*generation, name, spec));
  return reading;
}

absl::StatusOr<ConfigReading> read_config(const std::string& folder) {
  // Real files are a few kilobytes; a megabyte leaves room for long lists of module names.
  constexpr JsonLimits kLimits{.max_bytes = 1u << 20, .max_depth = 64};
  ASSIGN_OR_RETURN(const json config,
                   read_json_file(absl::StrCat(folder, "/config.json"), kLimits));
  const std::string generation_path = absl::StrCat(folder, "/generation_config.json");
  struct stat info {};
  if (::stat(generation_path.c_str(), &info) != 0) return read_config(config, nullptr, folder);
  ASSIGN_OR_RETURN(const json generation, read_json_file(generation_path, kLimits));
  return read_config(config, &generation, folder);
}

}  // namespace brigade::runtime
