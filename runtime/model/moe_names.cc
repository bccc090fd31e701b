#include "runtime/model/moe_names.h"

#include <vector>

namespace brigade::runtime {
namespace {

MoeNames by_expert(const std::string& block, const char* gate, const char* up, const char* down) {
  return {block + "gate.weight", block + "experts.", gate, up, down, "", ""};
}

MoeNames packed(const std::string& block) {
  return {block + "gate.weight",      "", "", "", "", block + "experts.gate_up_proj",
          block + "experts.down_proj"};
}

// Two experts are looked at, so that one misspelt name does not change the choice.
int count_held(const MoeNames& names, absl::FunctionRef<bool(const std::string&)> holds) {
  if (names.packed()) return 2 * (holds(names.packed_gate_up) + holds(names.packed_down));
  int held = 0;
  for (int expert : {0, 1}) {
    for (const std::string* matrix : {&names.gate, &names.up, &names.down}) {
      held += holds(names.expert(expert, *matrix));
    }
  }
  return held;
}

}  // namespace

MoeNames choose_moe_names(const std::string& prefix,
                          absl::FunctionRef<bool(const std::string&)> holds) {
  const std::string classic = prefix + "block_sparse_moe.", plain = prefix + "mlp.";
  const std::vector<MoeNames> candidates = {
      by_expert(classic, "w1.weight", "w3.weight", "w2.weight"),
      by_expert(plain, "gate_proj.weight", "up_proj.weight", "down_proj.weight"),
      by_expert(classic, "gate_proj.weight", "up_proj.weight", "down_proj.weight"), packed(plain),
      packed(classic)};
  const MoeNames* best = &candidates.front();
  int best_held = 0;
  for (const MoeNames& names : candidates) {
    const int held = count_held(names, holds);
    if (held > best_held) {
      best = &names;
      best_held = held;
    }
  }
  return *best;
}

}  // namespace brigade::runtime
