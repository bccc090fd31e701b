// What a model is, read from config.json: sizes, rope, and for each layer its feed-forward kind with
// its routing rule. Everything after the reader works from this, never from a family's name. Data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"

namespace brigade::runtime {

struct RopeSpec {
  double theta = 10000;
  int rotary_dim = 0;
  kernels::RopePairing pairing = kernels::RopePairing::kSplitHalves;
  // Llama 3 frequency scaling; factor 1 means none.
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int original_max_positions = 0;
};

struct AttentionSpec {
  int heads = 0, kv_heads = 0, head_dim = 0;
  bool qkv_bias = false, output_bias = false;
  int window = 0;      // 0: full
  double scale = 0;    // 1/sqrt(head_dim)
};

struct MoeSpec {
  kernels::RouterRule rule;
  int ffn = 0;                 // width of one expert
  bool selection_bias = false; // a bias tensor takes part in choosing
  int shared_ffn = 0;          // 0: no shared expert
  bool shared_gate = false;
};

struct LayerSpec {
  std::optional<MoeSpec> moe;  // else dense
  int dense_ffn = 0;
  bool ffn_bias = false;
};

struct ModelSpec {
  std::string family;          // "llama", "mixtral"
  int hidden = 0, vocab = 0, max_positions = 0;
  double norm_eps = 1e-5;
  bool tied_embeddings = false;
  AttentionSpec attention;
  RopeSpec rope;
  std::vector<LayerSpec> layers;
  std::vector<int32_t> eos_tokens;  // config.json and generation_config.json together
  int32_t bos_token = -1;
  // From generation_config.json; what the server uses when a request leaves a field unset.
  std::optional<double> default_temperature, default_top_p;
  std::optional<int> default_top_k;

  int num_layers() const { return static_cast<int>(layers.size()); }
  int64_t parameters_total() const;
  int64_t parameters_active() const;  // per token
};

}  // namespace brigade::runtime
