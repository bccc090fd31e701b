#include "runtime/engine/sequence_speculation.h"

#include <algorithm>

namespace brigade::runtime {

std::unique_ptr<SequenceSpeculation> make_speculation(const GenerateRequest& request,
                                                      const EngineConfig& config, int vocab,
                                                      int max_law_entries) {
  SpeculationParams wanted = request.speculation;
  if (wanted.mode == SpeculationMode::kServerDefault) wanted = config.speculation;
  const bool fixed = wanted.mode == SpeculationMode::kFixed;
  const int depth = fixed ? std::min(wanted.depth, config.max_draft_depth) : config.max_draft_depth;
  const bool off = !fixed && wanted.mode != SpeculationMode::kAuto;
  if (off || depth <= 0) return nullptr;
  return std::make_unique<SequenceSpeculation>(fixed ? DepthMode::kFixed : DepthMode::kAuto, depth,
                                               vocab, max_law_entries);
}

}  // namespace brigade::runtime
