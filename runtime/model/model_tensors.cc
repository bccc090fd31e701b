#include "runtime/model/model_tensors.h"

#include <cmath>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/status.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/moe_names.h"

namespace brigade::runtime {
namespace {

using kernels::DType;
using Shape = std::vector<int64_t>;

constexpr size_t kMaxNamesInSentence = 8;
constexpr int64_t kTensorsPerLayer = 9;  // two norms, q, k, v, o and at least three of the FFN
constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kOutput[] = "lm_head.weight";

absl::StatusOr<DType> weight_dtype(const CheckpointTensor& tensor) {
  const std::string& dtype = tensor.entry->dtype;
  if (dtype == "F32") return DType::kF32;
  if (dtype == "F16") return DType::kF16;
  if (dtype == "BF16") return DType::kBF16;
  return absl::InvalidArgumentError(absl::StrCat(tensor.file->path(), ": tensor \"",
                                                 tensor.entry->name, "\" has dtype ", dtype,
                                                 "; weights are F32, F16 or BF16"));
}

// Old exports carry the rope frequencies, which config.json already fixes.
bool is_ignored(std::string_view name) {
  return absl::EndsWith(absl::string_view(name.data(), name.size()), ".rotary_emb.inv_freq");
}

// Takes tensors out of a checkpoint by name and keeps count of what is missing and what is left.
class Taker {
 public:
  explicit Taker(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  void take(const std::string& name, const Shape& shape, TensorView& view) {
    const CheckpointTensor* tensor = checkpoint_.find(name);
    if (tensor == nullptr) {
      ++num_missing_;
      if (missing_.size() < kMaxNamesInSentence) missing_.push_back(name);
      return;
    }
    taken_.insert(&tensor->entry->name);
    if (!status_.ok()) return;
    const absl::StatusOr<DType> dtype = weight_dtype(*tensor);
    if (!dtype.ok()) {
      status_ = dtype.status();
    } else if (tensor->entry->shape != shape) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(tensor->file->path(), ": tensor \"", name, "\" has shape [",
                       absl::StrJoin(tensor->entry->shape, ", "), "], config.json asks for [",
                       absl::StrJoin(shape, ", "), "]"));
    } else {
      view = {name, tensor->data(), *dtype, shape};
    }
  }
  bool holds(const std::string& name) const { return checkpoint_.find(name) != nullptr; }

  // Names come before shapes: a misspelt name explains more than its consequences.
  absl::Status finish() const {
    std::vector<std::string> unexpected;
    size_t num_unexpected = 0;
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      if (taken_.count(&tensor.entry->name) != 0 || is_ignored(name)) continue;
      ++num_unexpected;
      if (unexpected.size() < kMaxNamesInSentence) {
        unexpected.push_back(absl::StrCat(name, " (in ", tensor.file->path(), ")"));
      }
    }
    if (num_missing_ == 0 && num_unexpected == 0) return status_;
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint_.folder(), ": the tensors do not fit config.json; missing: ",
        sentence(missing_, num_missing_), "; unexpected: ", sentence(unexpected, num_unexpected)));
  }

 private:
  static std::string sentence(const std::vector<std::string>& some, size_t count) {
    if (count == 0) return "none";
    std::string text = absl::StrJoin(some, ", ");
    if (count > some.size()) absl::StrAppend(&text, " and ", count - some.size(), " more");
    return text;
  }

  const Checkpoint& checkpoint_;
  std::set<const std::string*> taken_;
  std::vector<std::string> missing_;
  size_t num_missing_ = 0;
  absl::Status status_;
};

void take_attention(const ModelSpec& spec, const std::string& prefix, Taker& taker,
                    LayerTensors& layer) {
  const AttentionSpec& a = spec.attention;
  const int64_t q = int64_t{a.heads} * a.head_dim, kv = int64_t{a.kv_heads} * a.head_dim;
  const std::string attention = prefix + "self_attn.";
  taker.take(attention + "q_proj.weight", {q, spec.hidden}, layer.q);
  taker.take(attention + "k_proj.weight", {kv, spec.hidden}, layer.k);
  taker.take(attention + "v_proj.weight", {kv, spec.hidden}, layer.v);
  taker.take(attention + "o_proj.weight", {spec.hidden, q}, layer.o);
  if (a.qkv_bias) {
    taker.take(attention + "q_proj.bias", {q}, layer.q_bias);
    taker.take(attention + "k_proj.bias", {kv}, layer.k_bias);
    taker.take(attention + "v_proj.bias", {kv}, layer.v_bias);
  }
  if (a.output_bias) taker.take(attention + "o_proj.bias", {spec.hidden}, layer.o_bias);
}

// Rows [first, first + rows) of expert `expert` in a packed [experts, total, k] tensor.
TensorView slice(const TensorView& packed, int expert, int64_t first, int64_t rows) {
  const int64_t total = packed.shape[1], k = packed.shape[2];
  const int64_t start = (expert * total + first) * k;
  const auto* bytes = static_cast<const uint8_t*>(packed.data);
  return {absl::StrCat(packed.name, "[", expert, "]"),
          bytes + start * static_cast<int64_t>(kernels::dtype_bytes(packed.dtype)),
          packed.dtype,
          {rows, k}};
}

void take_packed_experts(const ModelSpec& spec, const MoeSpec& moe, const MoeNames& names,
                         Taker& taker, LayerTensors& layer) {
  const int experts = moe.rule.num_experts;
  TensorView gate_up, down;
  taker.take(names.packed_gate_up, {experts, 2 * int64_t{moe.ffn}, spec.hidden}, gate_up);
  taker.take(names.packed_down, {experts, spec.hidden, moe.ffn}, down);
  if (!gate_up.present() || !down.present()) return;
  layer.experts.resize(experts);
  for (int e = 0; e < experts; ++e) {
    layer.experts[e] = {slice(gate_up, e, 0, moe.ffn), slice(gate_up, e, moe.ffn, moe.ffn),
                        slice(down, e, 0, spec.hidden)};
  }
}

void take_moe(const ModelSpec& spec, const MoeSpec& moe, const std::string& prefix, Taker& taker,
              LayerTensors& layer) {
  const MoeNames names =
      choose_moe_names(prefix, [&taker](const std::string& name) { return taker.holds(name); });
  taker.take(names.router, {moe.rule.num_experts, spec.hidden}, layer.router);
  if (names.packed()) {
    take_packed_experts(spec, moe, names, taker, layer);
    return;
  }
  layer.experts.resize(moe.rule.num_experts);
  for (int e = 0; e < moe.rule.num_experts; ++e) {
    FfnTensors& expert = layer.experts[e];
    taker.take(names.expert(e, names.gate), {moe.ffn, spec.hidden}, expert.gate);
    taker.take(names.expert(e, names.up), {moe.ffn, spec.hidden}, expert.up);
    taker.take(names.expert(e, names.down), {spec.hidden, moe.ffn}, expert.down);
  }
}

void take_layer(const ModelSpec& spec, int index, Taker& taker, LayerTensors& layer) {
  const std::string prefix = absl::StrCat("model.layers.", index, ".");
  taker.take(prefix + "input_layernorm.weight", {spec.hidden}, layer.input_norm);
  take_attention(spec, prefix, taker, layer);
  taker.take(prefix + "post_attention_layernorm.weight", {spec.hidden}, layer.post_norm);
  const LayerSpec& kind = spec.layers[index];
  if (kind.moe) {
    take_moe(spec, *kind.moe, prefix, taker, layer);
    return;
  }
  taker.take(prefix + "mlp.gate_proj.weight", {kind.dense_ffn, spec.hidden}, layer.dense.gate);
  taker.take(prefix + "mlp.up_proj.weight", {kind.dense_ffn, spec.hidden}, layer.dense.up);
  taker.take(prefix + "mlp.down_proj.weight", {spec.hidden, kind.dense_ffn}, layer.dense.down);
}

bool is_finite(const TensorView& tensor) {
  const auto* bytes = static_cast<const uint8_t*>(tensor.data);
  int64_t count = 1;
  for (int64_t extent : tensor.shape) count *= extent;
  // All ones in the exponent: infinite or not a number.
  for (int64_t i = 0; i < count; ++i) {
    if (tensor.dtype == DType::kF32) {
      uint32_t bits;
      std::memcpy(&bits, bytes + 4 * i, 4);
      if ((bits & 0x7f800000u) == 0x7f800000u) return false;
    } else {
      const uint16_t exponent = tensor.dtype == DType::kF16 ? 0x7c00 : 0x7f80;
      uint16_t bits;
      std::memcpy(&bits, bytes + 2 * i, 2);
      if ((bits & exponent) == exponent) return false;
    }
  }
  return true;
}

// A router constant that is not finite would send every token the same wrong way without an error.
absl::Status check_finite(const ModelTensors& tensors, const Checkpoint& checkpoint) {
  for (size_t i = 0; i < tensors.layers.size(); ++i) {
    const LayerTensors& layer = tensors.layers[i];
    for (const TensorView* view :
         {&layer.input_norm, &layer.post_norm, &layer.router, &layer.router_bias}) {
      if (view->present() && !is_finite(*view)) {
        return absl::InvalidArgumentError(absl::StrCat(checkpoint.find(view->name)->file->path(),
                                                       ": tensor \"", view->name, "\" of layer ", i,
                                                       " holds a value that is not finite"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status take_output(const ModelSpec& spec, const Checkpoint& checkpoint, Taker& taker,
                         ModelTensors& tensors) {
  const Shape shape = {spec.vocab, spec.hidden};
  if (!spec.tied_embeddings) {
    taker.take(kOutput, shape, tensors.lm_head);
    return absl::OkStatus();
  }
  if (checkpoint.find(kOutput) == nullptr) {
    tensors.lm_head = tensors.embedding;
    return absl::OkStatus();
  }
  taker.take(kOutput, shape, tensors.lm_head);
  const TensorView &output = tensors.lm_head, &embedding = tensors.embedding;
  if (!output.present() || !embedding.present()) return absl::OkStatus();  // reported by finish()
  const size_t bytes = shape[0] * shape[1] * kernels::dtype_bytes(embedding.dtype);
  if (output.dtype != embedding.dtype || std::memcmp(output.data, embedding.data, bytes) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.find(kOutput)->file->path(), ": tensor \"", kOutput, "\" differs from \"",
        kEmbedding, "\" though config.json says tie_word_embeddings: true"));
  }
  tensors.lm_head = embedding;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelTensors> resolve(const ModelSpec& spec, const Checkpoint& checkpoint) {
  // Before anything is sized by the config's numbers.
  const auto held = static_cast<int64_t>(checkpoint.tensors().size());
  if (spec.num_layers() > held / kTensorsPerLayer + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.folder(), ": config.json asks for num_hidden_layers ",
                     spec.num_layers(), ", far more than the ", held, " tensors present can fill"));
  }
  Taker taker(checkpoint);
  ModelTensors tensors;
  taker.take(kEmbedding, {spec.vocab, spec.hidden}, tensors.embedding);
  tensors.layers.resize(spec.layers.size());
  for (int i = 0; i < spec.num_layers(); ++i) take_layer(spec, i, taker, tensors.layers[i]);
  taker.take("model.norm.weight", {spec.hidden}, tensors.final_norm);
  RETURN_IF_ERROR(take_output(spec, checkpoint, taker, tensors));
  RETURN_IF_ERROR(taker.finish());
  RETURN_IF_ERROR(check_finite(tensors, checkpoint));
  return tensors;
}

}  // namespace brigade::runtime
