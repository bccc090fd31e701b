// Model folders that a test writes for itself: safetensors files byte by byte (also broken ones)
// and tiny Llama and Mixtral checkpoints whose every value is known, in a folder removed at the
// end.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace brigade::tests {

// A fresh folder under the test's temporary directory, removed with the object.
class ModelFolder {
 public:
  ModelFolder();
  ~ModelFolder();
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& bytes) const;
  void write_json(const std::string& name, const nlohmann::json& value) const {
    write(name, value.dump());
  }
  void remove(const std::string& name) const;

 private:
  std::string path_;
};

struct TinyTensor {
  std::vector<int64_t> shape;
  std::string bytes;
  std::string dtype = "F32";
};
using TinyTensors = std::map<std::string, TinyTensor>;

// An f32 tensor of the shape; element i depends on seed and i alone, within [-scale, scale].
TinyTensor random_f32(std::vector<int64_t> shape, uint64_t seed, float scale = 0.5f);

// A whole file: length, header, data. `length` other than the header's own makes a broken one.
std::string raw_safetensors(const std::string& header, const std::string& data);
std::string raw_safetensors(uint64_t length, const std::string& header, const std::string& data);
std::string safetensors_bytes(const TinyTensors& tensors);

// A hidden 8, 2 heads of 4, 1 KV head, vocabulary 16, 2 layers, FFN 12 Llama, untied.
nlohmann::json tiny_llama_config();
TinyTensors tiny_llama_tensors();
// The same body with 12 experts of width 4, top-2, in the classic layout.
inline constexpr int kTinyExperts = 12;
nlohmann::json tiny_mixtral_config();
TinyTensors tiny_mixtral_tensors();

}  // namespace brigade::tests
