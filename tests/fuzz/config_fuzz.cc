// Any text as config.json, and what follows a line of dashes as generation_config.json. What is
// accepted must be a model whose sizes fit together.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "runtime/files/json.h"
#include "runtime/model/config_reader.h"

namespace {

using brigade::runtime::ModelSpec;

void check_spec(const ModelSpec& spec) {
  const auto& a = spec.attention;
  CHECK(spec.hidden > 0 && spec.vocab > 0 && spec.max_positions > 0 && spec.num_layers() > 0);
  CHECK(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0 && a.head_dim > 0);
  CHECK(spec.rope.rotary_dim == a.head_dim && spec.rope.rotary_dim % 2 == 0);
  CHECK(spec.rope.theta >= 1 && spec.rope.factor >= 1);
  CHECK(spec.parameters_active() > 0 && spec.parameters_active() <= spec.parameters_total());
  for (int32_t id : spec.eos_tokens) CHECK(id >= 0 && id < spec.vocab);
  for (const auto& layer : spec.layers) {
    if (layer.moe) CHECK(layer.moe->rule.top_k <= layer.moe->rule.num_experts);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view kSeparator = "\n---\n";
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find(kSeparator);
  const auto config = brigade::runtime::parse_json(input.substr(0, cut), "config.json");
  if (!config.ok()) return 0;
  if (cut == std::string_view::npos) {
    const auto reading = brigade::runtime::read_config(*config, nullptr, "m");
    if (reading.ok()) check_spec(reading->spec);
    return 0;
  }
  const auto generation =
      brigade::runtime::parse_json(input.substr(cut + kSeparator.size()), "generation_config.json");
  if (!generation.ok()) return 0;
  const auto reading = brigade::runtime::read_config(*config, &*generation, "m");
  if (reading.ok()) check_spec(reading->spec);
  return 0;
}
