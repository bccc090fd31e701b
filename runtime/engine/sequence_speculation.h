// What speculation keeps for one sequence. Built by the submitting thread, then the step thread's.
#pragma once

#include <memory>

#include "runtime/engine/engine_config.h"
#include "runtime/request/request.h"
#include "runtime/speculative/depth_control.h"
#include "runtime/speculative/draft_list.h"
#include "runtime/speculative/draft_source.h"
#include "runtime/speculative/drafter.h"
#include "runtime/speculative/survival.h"

namespace brigade::runtime {

struct SequenceSpeculation {
  SequenceSpeculation(DepthMode depth_mode, int depth, int vocab, int max_law_entries)
      : mode(depth_mode), fixed(depth), drafts(vocab, depth + 1, max_law_entries) {}

  const DepthMode mode;
  const int fixed;  // with kFixed; else the most
  bool opened = false;
  int want = 0;                      // drafts to ask for at its next step; 0: its drafter rests
  int asked = -1;                    // at its last one
  std::unique_ptr<Drafter> drafter;  // null: not opened yet, or nobody drafts for this sequence
  DraftList drafts;                  // of the step that is planned or in flight
  Survival survival;
};

// Null when the request (or, where it leaves it open, the server) wants none.
std::unique_ptr<SequenceSpeculation> make_speculation(const GenerateRequest& request,
                                                      const EngineConfig& config, int vocab,
                                                      int max_law_entries);

}  // namespace brigade::runtime
