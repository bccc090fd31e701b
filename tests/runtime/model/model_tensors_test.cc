#include "runtime/model/model_tensors.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/config_reader.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using tests::random_f32;
using tests::ModelFolder;
using tests::tiny_llama_config;
using tests::tiny_llama_tensors;
using tests::tiny_mixtral_config;
using tests::tiny_mixtral_tensors;
using tests::TinyTensor;
using tests::TinyTensors;

constexpr char kMoe0[] = "model.layers.0.block_sparse_moe.";

// A folder, its checkpoint and what resolve() makes of it, kept alive together.
struct Resolved {
  Resolved(const json& config, const TinyTensors& tensors) {
    folder.write("model.safetensors", tests::safetensors_bytes(tensors));
    auto reading = read_config(config, nullptr, folder.path());
    EXPECT_TRUE(reading.ok()) << reading.status();
    auto opened = Checkpoint::open(folder.path());
    EXPECT_TRUE(opened.ok()) << opened.status();
    checkpoint = *std::move(opened);
    spec = reading->spec;
    result = resolve(spec, *checkpoint);
  }
  std::string refusal() const {
    if (result.ok()) return "accepted";
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(folder.path()));
    return std::string(result.status().message());
  }
  ModelFolder folder;
  std::unique_ptr<Checkpoint> checkpoint;
  ModelSpec spec;
  absl::StatusOr<ModelTensors> result = absl::UnknownError("not run");
};

bool holds(const TensorView& view, const TinyTensor& tensor) {
  return view.present() && view.shape == tensor.shape &&
         std::memcmp(view.data, tensor.bytes.data(), tensor.bytes.size()) == 0;
}

TEST(ModelTensors, FillsEveryRoleOfALlama) {
  json config = tiny_llama_config();
  config["attention_bias"] = true;
  TinyTensors tensors = tiny_llama_tensors();
  for (int layer : {0, 1}) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
    tensors[prefix + "q_proj.bias"] = random_f32({8}, 50);
    tensors[prefix + "k_proj.bias"] = random_f32({4}, 51);
    tensors[prefix + "v_proj.bias"] = random_f32({4}, 52);
    tensors[prefix + "o_proj.bias"] = random_f32({8}, 53);
    tensors[prefix + "rotary_emb.inv_freq"] = random_f32({2}, 54);  // ignored by rule
  }
  const Resolved model(config, tensors);
  ASSERT_TRUE(model.result.ok()) << model.result.status();
  const LayerTensors& layer = model.result->layers[1];
  EXPECT_TRUE(holds(model.result->embedding, tensors["model.embed_tokens.weight"]));
  EXPECT_TRUE(holds(model.result->lm_head, tensors["lm_head.weight"]));
  EXPECT_TRUE(holds(layer.k, tensors["model.layers.1.self_attn.k_proj.weight"]));
  EXPECT_TRUE(holds(layer.o_bias, tensors["model.layers.1.self_attn.o_proj.bias"]));
  EXPECT_TRUE(holds(layer.dense.up, tensors["model.layers.1.mlp.up_proj.weight"]));
  EXPECT_TRUE(layer.experts.empty());
}

TEST(ModelTensors, ExpertOneIsNotExpertTen) {
  TinyTensors tensors = tiny_mixtral_tensors();
  const Resolved model(tiny_mixtral_config(), tensors);
  ASSERT_TRUE(model.result.ok()) << model.result.status();
  const std::string experts = std::string(kMoe0) + "experts.";
  EXPECT_TRUE(holds(model.result->layers[0].experts[1].gate, tensors[experts + "1.w1.weight"]));
  EXPECT_TRUE(holds(model.result->layers[0].experts[10].gate, tensors[experts + "10.w1.weight"]));
  EXPECT_TRUE(holds(model.result->layers[0].experts[11].down, tensors[experts + "11.w2.weight"]));
  tensors.erase(experts + "1.w1.weight");
  const Resolved without(tiny_mixtral_config(), tensors);
  EXPECT_THAT(without.refusal(), AllOf(HasSubstr("missing: " + experts + "1.w1.weight"),
                                       HasSubstr("unexpected: none")));
}

// The same values under the other spellings.
TinyTensors named_by_projection(const TinyTensors& classic) {
  TinyTensors named;
  for (const auto& [classic_name, tensor] : classic) {
    std::string name = classic_name;
    for (const auto& [from, to] : {std::pair<std::string, std::string>{"block_sparse_moe", "mlp"},
                                   {"w1.weight", "gate_proj.weight"},
                                   {"w3.weight", "up_proj.weight"},
                                   {"w2.weight", "down_proj.weight"}}) {
      const size_t at = name.find(from);
      if (at != std::string::npos) name.replace(at, from.size(), to);
    }
    named[name] = tensor;
  }
  return named;
}

TinyTensors packed(const TinyTensors& classic) {
  TinyTensors all;
  for (const auto& [name, tensor] : classic) {
    if (name.find(".experts.") == std::string::npos) all[name] = tensor;
  }
  for (int layer : {0, 1}) {
    const std::string prefix =
        "model.layers." + std::to_string(layer) + ".block_sparse_moe.experts.";
    TinyTensor gate_up{{tests::kTinyExperts, 8, 8}, ""}, down{{tests::kTinyExperts, 8, 4}, ""};
    for (int e = 0; e < tests::kTinyExperts; ++e) {
      const std::string expert = prefix + std::to_string(e) + ".";
      gate_up.bytes +=
          classic.at(expert + "w1.weight").bytes + classic.at(expert + "w3.weight").bytes;
      down.bytes += classic.at(expert + "w2.weight").bytes;
    }
    all[prefix + "gate_up_proj"] = gate_up;
    all[prefix + "down_proj"] = down;
  }
  return all;
}

// sgl-project/sglang pulls 37679 and 29659: one family, several layouts of its experts.
TEST(ModelTensors, AllLayoutsOfExpertsGiveTheSameMatrices) {
  const TinyTensors classic = tiny_mixtral_tensors();
  for (const TinyTensors& layout : {named_by_projection(classic), packed(classic)}) {
    const Resolved model(tiny_mixtral_config(), layout);
    ASSERT_TRUE(model.result.ok()) << model.result.status();
    for (int layer : {0, 1}) {
      for (int e = 0; e < tests::kTinyExperts; ++e) {
        const FfnTensors& expert = model.result->layers[layer].experts[e];
        const std::string name = "model.layers." + std::to_string(layer) +
                                 ".block_sparse_moe.experts." + std::to_string(e) + ".";
        EXPECT_TRUE(holds(expert.gate, classic.at(name + "w1.weight"))) << name;
        EXPECT_TRUE(holds(expert.up, classic.at(name + "w3.weight"))) << name;
        EXPECT_TRUE(holds(expert.down, classic.at(name + "w2.weight"))) << name;
      }
    }
  }
}

TEST(ModelTensorsHostile, AMisspeltNameIsListedWithTheMissingOne) {
  TinyTensors tensors = named_by_projection(tiny_mixtral_tensors());
  auto node = tensors.extract("model.layers.0.mlp.experts.1.gate_proj.weight");
  node.key() = "model.layers.0.mlp.experts.1.gate_prj.weight";
  tensors.insert(std::move(node));
  const Resolved model(tiny_mixtral_config(), tensors);
  EXPECT_THAT(model.refusal(),
              AllOf(HasSubstr("missing: model.layers.0.mlp.experts.1.gate_proj.weight;"),
                    HasSubstr("unexpected: model.layers.0.mlp.experts.1.gate_prj.weight (in "),
                    HasSubstr("model.safetensors")));
}

TEST(ModelTensorsHostile, TensorsOfTheOtherKindOfLayerAreRefused) {
  TinyTensors tensors = tiny_mixtral_tensors();
  tensors["model.layers.1.mlp.up_proj.weight"] = random_f32({4, 8}, 9);
  EXPECT_THAT(Resolved(tiny_mixtral_config(), tensors).refusal(),
              HasSubstr("unexpected: model.layers.1.mlp.up_proj.weight"));
  tensors = tiny_llama_tensors();
  tensors["model.layers.2.input_layernorm.weight"] = random_f32({8}, 9);
  EXPECT_THAT(Resolved(tiny_llama_config(), tensors).refusal(),
              HasSubstr("unexpected: model.layers.2.input_layernorm.weight"));
  tensors = tiny_llama_tensors();
  tensors["model.layers.0.self_attn.q_proj.bias"] = random_f32({8}, 9);
  EXPECT_THAT(Resolved(tiny_llama_config(), tensors).refusal(), HasSubstr("unexpected: "));
}

TEST(ModelTensorsHostile, ShapesAndDtypesAreNamed) {
  TinyTensors tensors = tiny_llama_tensors();
  tensors["model.layers.0.self_attn.k_proj.weight"] = random_f32({8, 4}, 1);
  EXPECT_THAT(Resolved(tiny_llama_config(), tensors).refusal(),
              AllOf(HasSubstr("\"model.layers.0.self_attn.k_proj.weight\" has shape [8, 4]"),
                    HasSubstr("asks for [4, 8]")));
  tensors = tiny_llama_tensors();
  tensors["model.norm.weight"].dtype = "I32";
  EXPECT_THAT(Resolved(tiny_llama_config(), tensors).refusal(),
              AllOf(HasSubstr("model.safetensors: tensor \"model.norm.weight\" has dtype I32")));
}

TEST(ModelTensorsHostile, ConfigNumbersBeyondTheFilesCostNoMemory) {
  json config = tiny_llama_config();
  config["num_hidden_layers"] = 4000;
  const Resolved deep(config, tiny_llama_tensors());
  EXPECT_THAT(deep.refusal(), HasSubstr("num_hidden_layers 4000"));
  config = tiny_mixtral_config();
  config["num_local_experts"] = 1024;
  tests::reset_largest_allocation();
  const Resolved wide(config, tiny_mixtral_tensors());
  EXPECT_THAT(wide.refusal(), AllOf(HasSubstr("experts.12.w1.weight"), HasSubstr(" more;")));
  EXPECT_LT(tests::allocations().largest, 2'000'000u);
}

// A router constant that is not finite gave silent nonsense: NVIDIA/TensorRT-Model-Connect pull
// 669.
TEST(ModelTensorsHostile, RouterConstantsMustBeFinite) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    TinyTensors tensors = tiny_mixtral_tensors();
    std::memcpy(tensors["model.layers.1.block_sparse_moe.gate.weight"].bytes.data() + 20, &bad, 4);
    EXPECT_THAT(Resolved(tiny_mixtral_config(), tensors).refusal(),
                AllOf(HasSubstr("\"model.layers.1.block_sparse_moe.gate.weight\" of layer 1"),
                      HasSubstr("not finite")));
  }
}

// vllm-project/vllm issue 53019: every answer was noise because lm_head stayed at random values.
TEST(ModelTensors, TiedEmbeddingRules) {
  const TinyTensors untied = tiny_llama_tensors();
  TinyTensors absent = untied, equal = untied;
  absent.erase("lm_head.weight");
  equal["lm_head.weight"] = equal["model.embed_tokens.weight"];
  const auto outcome = [](const json& tie, const TinyTensors& tensors) {
    json config = tiny_llama_config();
    config.erase("tie_word_embeddings");
    if (!tie.is_null()) config["tie_word_embeddings"] = tie;
    const Resolved model(config, tensors);
    if (!model.result.ok()) return model.refusal();
    return std::string(holds(model.result->lm_head, tensors.at("model.embed_tokens.weight"))
                           ? "embedding"
                           : "own");
  };
  EXPECT_EQ(outcome(true, absent), "embedding");
  EXPECT_EQ(outcome(true, equal), "embedding");
  EXPECT_THAT(outcome(true, untied),
              AllOf(HasSubstr("\"lm_head.weight\" differs"), HasSubstr("tie_word_embeddings")));
  for (const json& not_tied : {json(false), json()}) {  // absent: false is the family's default
    EXPECT_THAT(outcome(not_tied, absent), HasSubstr("missing: lm_head.weight"));
    EXPECT_EQ(outcome(not_tied, equal), "embedding");
    EXPECT_EQ(outcome(not_tied, untied), "own");
  }
}

}  // namespace
}  // namespace brigade::runtime
