#include "runtime/model/rope_config.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;
constexpr int kMaxPositions = 1 << 27;

std::string read_type(ConfigObject& rope) {
  const std::optional<std::string> old_name = rope.text("type");
  const std::optional<std::string> new_name = rope.text("rope_type");
  if (old_name && new_name && *old_name != *new_name) {
    rope.fail("type",
              absl::StrCat("\"", *old_name, "\" and rope_type \"", *new_name, "\" disagree"));
  }
  if (new_name) return *new_name;
  return old_name.value_or("default");
}

void read_llama3(ConfigObject& rope, RopeSpec& spec) {
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (rope.value(key) == nullptr) rope.fail(key, "is missing");
  }
  spec.factor = rope.number("factor", 1, kMaxFactor).value_or(1);
  spec.low_freq_factor = rope.number("low_freq_factor", 1e-6, kMaxFactor).value_or(1);
  spec.high_freq_factor = rope.number("high_freq_factor", 1e-6, kMaxFactor).value_or(4);
  if (spec.high_freq_factor <= spec.low_freq_factor) {
    rope.fail("high_freq_factor", "must be greater than low_freq_factor");
  }
  spec.original_max_positions =
      static_cast<int>(rope.required_integer("original_max_position_embeddings", 1, kMaxPositions));
}

// One rope object, whichever of the two keys holds it.
absl::Status read_rope_object(ConfigObject& rope, RopeSpec& spec, std::optional<double>& theta) {
  const std::string type = read_type(rope);
  theta = rope.number("rope_theta", 1, kMaxTheta);
  if (rope.number("partial_rotary_factor", 0, 1).value_or(1) != 1) {
    rope.fail("partial_rotary_factor", "other than 1 is not supported");
  }
  if (type == "llama3") {
    read_llama3(rope, spec);
  } else if (type != "default") {
    rope.fail("rope_type", absl::StrCat("\"", type.substr(0, 60),
                                        "\" is not supported; supported: default, llama3"));
  }
  for (const std::string& key : rope.unread_keys()) {
    if (rope.value(key) == nullptr) continue;
    // A plain rope may carry the context length that the model was trained with.
    if (type == "default" && key == "original_max_position_embeddings") continue;
    rope.fail(key, absl::StrCat("is not a setting of rope type \"", type, "\""));
  }
  return rope.status();
}

bool same_rope(const RopeSpec& a, const RopeSpec& b) {
  return a.factor == b.factor && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor &&
         a.original_max_positions == b.original_max_positions;
}

}  // namespace

absl::StatusOr<RopeSpec> read_rope(ConfigObject& config, int head_dim, double default_theta) {
  const nlohmann::json* scaling = config.object("rope_scaling");
  const nlohmann::json* parameters = config.object("rope_parameters");
  std::optional<double> theta = config.number("rope_theta", 1, kMaxTheta);
  RETURN_IF_ERROR(config.status());
  RopeSpec spec, other;
  std::optional<double> inner_theta, other_theta;
  if (scaling != nullptr) {
    ConfigObject object(*scaling, absl::StrCat(config.where(), ": rope_scaling"));
    RETURN_IF_ERROR(read_rope_object(object, spec, inner_theta));
    other = spec;
  }
  if (parameters != nullptr) {
    ConfigObject object(*parameters, absl::StrCat(config.where(), ": rope_parameters"));
    spec = RopeSpec();
    RETURN_IF_ERROR(read_rope_object(object, spec, other_theta));
    if (scaling != nullptr && !same_rope(spec, other)) {
      config.fail("rope_parameters", "and rope_scaling disagree");
    }
  }
  for (const std::optional<double>& inner : {inner_theta, other_theta}) {
    if (inner && theta && *inner != *theta) {
      config.fail("rope_theta", absl::StrCat("is given as ", *theta, " and as ", *inner));
    }
    if (inner) theta = inner;
  }
  spec.theta = theta.value_or(default_theta);
  spec.rotary_dim = head_dim;
  if (head_dim % 2 != 0) config.fail("head_dim", absl::StrCat("is ", head_dim, ", which is odd"));
  RETURN_IF_ERROR(config.status());
  return spec;
}

}  // namespace brigade::runtime
