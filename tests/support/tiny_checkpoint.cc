#include "tests/support/tiny_checkpoint.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace brigade::tests {

using nlohmann::json;

ModelFolder::ModelFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "brigade_test_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

ModelFolder::~ModelFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void ModelFolder::write(const std::string& name, const std::string& bytes) const {
  std::ofstream out(file(name), std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) std::abort();
}

void ModelFolder::remove(const std::string& name) const { std::filesystem::remove(file(name)); }

TinyTensor random_f32(std::vector<int64_t> shape, uint64_t seed, float scale) {
  size_t count = 1;
  for (int64_t extent : shape) count *= static_cast<size_t>(extent);
  TinyTensor tensor{std::move(shape), std::string(count * 4, '\0')};
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const float value = (static_cast<float>(state >> 40) / float(1 << 23) - 1.0f) * scale;
    std::memcpy(tensor.bytes.data() + 4 * i, &value, 4);
  }
  return tensor;
}

std::string raw_safetensors(uint64_t length, const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i));
  return file + header + data;
}

std::string raw_safetensors(const std::string& header, const std::string& data) {
  return raw_safetensors(header.size(), header, data);
}

std::string safetensors_bytes(const TinyTensors& tensors) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return raw_safetensors(header.dump(), data);
}

json tiny_llama_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 8},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"vocab_size", 16},
          {"num_hidden_layers", 2},
          {"intermediate_size", 12},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

json tiny_mixtral_config() {
  json config = tiny_llama_config();
  config["architectures"] = {"MixtralForCausalLM"};
  config["model_type"] = "mixtral";
  config["intermediate_size"] = 4;
  config["num_local_experts"] = kTinyExperts;
  config["num_experts_per_tok"] = 2;
  return config;
}

namespace {

TinyTensors tiny_body() {
  TinyTensors tensors;
  tensors["model.embed_tokens.weight"] = random_f32({16, 8}, 1);
  tensors["model.norm.weight"] = random_f32({8}, 2);
  tensors["lm_head.weight"] = random_f32({16, 8}, 3);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const uint64_t seed = 100 * (layer + 1);
    tensors[prefix + "input_layernorm.weight"] = random_f32({8}, seed);
    tensors[prefix + "post_attention_layernorm.weight"] = random_f32({8}, seed + 1);
    tensors[prefix + "self_attn.q_proj.weight"] = random_f32({8, 8}, seed + 2);
    tensors[prefix + "self_attn.k_proj.weight"] = random_f32({4, 8}, seed + 3);
    tensors[prefix + "self_attn.v_proj.weight"] = random_f32({4, 8}, seed + 4);
    tensors[prefix + "self_attn.o_proj.weight"] = random_f32({8, 8}, seed + 5);
  }
  return tensors;
}

}  // namespace

TinyTensors tiny_llama_tensors() {
  TinyTensors tensors = tiny_body();
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.";
    tensors[prefix + "gate_proj.weight"] = random_f32({12, 8}, 300 + layer);
    tensors[prefix + "up_proj.weight"] = random_f32({12, 8}, 310 + layer);
    tensors[prefix + "down_proj.weight"] = random_f32({8, 12}, 320 + layer);
  }
  return tensors;
}

TinyTensors tiny_mixtral_tensors() {
  TinyTensors tensors = tiny_body();
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".block_sparse_moe.";
    tensors[prefix + "gate.weight"] = random_f32({kTinyExperts, 8}, 400 + layer, 2.0f);
    for (int expert = 0; expert < kTinyExperts; ++expert) {
      const std::string name = prefix + "experts." + std::to_string(expert) + ".";
      const uint64_t seed = 1000 * (layer + 1) + 10 * expert;
      tensors[name + "w1.weight"] = random_f32({4, 8}, seed);
      tensors[name + "w3.weight"] = random_f32({4, 8}, seed + 1);
      tensors[name + "w2.weight"] = random_f32({8, 4}, seed + 2);
    }
  }
  return tensors;
}

}  // namespace brigade::tests
