// A draft engine over the scripted model, with a coordinator's view of each of its sequences: every
// draft is checked against the text it claims to follow and against the token that the policy gives
// after that text, worked out apart from the engine.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/draft_worker/draft_engine.h"
#include "runtime/speculative/draft_tail.h"
#include "tests/support/scripted_model.h"

namespace brigade::tests {

struct BedOptions {
  int vocab = 24;
  int blocks = 64;
  int block_size = 4;
  int max_sequences = 6;
  int max_rows = 12;
  int max_context = 96;
};

// What the worker was told and has guessed, by the plain rule.
struct WorkerView {
  runtime::OpenDraft open;
  std::vector<int32_t> text;
  size_t committed = 0;

  void commit(const runtime::CommitDraft& commit);
};

class DraftEngineBed : public runtime::draft_worker::DraftSink {
 public:
  explicit DraftEngineBed(const BedOptions& options);

  // To the engine, and into the view.
  void open(const runtime::OpenDraft& open);
  void commit(uint64_t sequence, const std::vector<int32_t>& tokens, int wanted);
  void close(uint64_t sequence);
  // Steps until there is nothing to do.
  void run();

  // The draft after `text` under `open`'s policy; nullopt when there is nothing to draw from.
  std::optional<int32_t> expected(const runtime::OpenDraft& open, std::span<const int32_t> text);

  void drafted(const runtime::ChunkMessage& chunk) override;
  void refused(const runtime::DraftNack& nack) override { nacks.push_back(nack); }

  const BedOptions options;
  ScriptedWorld world;
  ScriptedModel model;
  runtime::draft_worker::DraftEngine engine;
  std::map<uint64_t, WorkerView> views;
  std::vector<runtime::ChunkMessage> chunks;
  std::vector<runtime::DraftNack> nacks;
};

runtime::OpenDraft greedy_open(uint64_t sequence, std::vector<int32_t> tokens, int wanted);

}  // namespace brigade::tests
