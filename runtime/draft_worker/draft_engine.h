// Drafts for all open sequences, one token of each in a batch step, and does not wait for verdicts:
// a sequence goes on from its own guesses up to the credit that its coordinator gave. Prompts and
// what was committed against the guesses are fed in between. A dense model through StepModel; KV
// blocks of its own; what no longer fits is refused, the sequence idle for longest first. What a
// sequence is given depends on its own history alone, never on the others (the model's rows are
// independent). Draft thread; no gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/core/waker.h"
#include "runtime/draft_worker/draft_sequence.h"
#include "runtime/draft_worker/draft_sink.h"
#include "runtime/model/step_model.h"
#include "runtime/sampling/draw.h"
#include "runtime/sampling/policy.h"
#include "runtime/scheduler/kv_blocks.h"

namespace brigade::runtime::draft_worker {

struct DraftEngineOptions {
  SequenceLimits limits;  // vocab: ids that may be proposed, at most the model's
  int max_sequences = 0;  // open at the same time
  absl::Duration step_deadline = absl::Seconds(30);
};

struct DraftEngineCounters {
  int64_t steps = 0, rows = 0;
  int64_t drafted = 0;       // tokens sent
  int64_t undone = 0;        // of those, by commits
  int64_t refused = 0;       // sequences
  int64_t largest_step = 0;  // sequences
};

class DraftEngine {
 public:
  // `model` and `sink` outlive this.
  DraftEngine(StepModel& model, const KvGeometry& kv, const DraftEngineOptions& options,
              DraftSink& sink);

  // A command that does not hold together costs its sequence, with a DraftNack. One for a sequence
  // or an epoch that is no longer open is dropped: the refusal is on its way.
  void take(DraftCommand command);
  // The coordinator is gone: all sequences are.
  void clear();

  bool has_work() const;
  // One batch step; without work, nothing. After an error the model is in no state to go on.
  absl::Status step();

  int open_sequences() const { return static_cast<int>(sequences_.size()); }
  int free_blocks() const { return blocks_.available(); }
  const DraftEngineCounters& counters() const { return counters_; }

 private:
  struct Slice {
    DraftSequence* sequence = nullptr;
    int rows = 0;
    int index = -1;  // of its logit row; -1: more rows are to be fed first
  };
  using Sequences = std::vector<std::unique_ptr<DraftSequence>>;

  void on(OpenDraft open);
  void on(const CommitDraft& commit);
  void on(const CloseDraft& close);
  Sequences::iterator find(uint64_t sequence);
  void refuse(uint64_t sequence, uint64_t epoch, NackReason reason, const std::string& detail);
  void remove(Sequences::iterator place);

  void plan();
  bool reserve(DraftSequence& sequence, int positions);
  DraftSequence* idle_longest(const DraftSequence& other) const;
  void fill_batch();
  RowOutput row_output(const PolicyInput& input) const;
  TargetRow drafter_row(const Slice& slice) const;
  absl::Status run();
  void finish(const Slice& slice);
  bool draft(DraftSequence& sequence, const TargetRow& row);

  StepModel& model_;
  const DraftEngineOptions options_;
  const int block_size_;
  DraftSink& sink_;
  KvBlocks blocks_;
  kernels::Waker waker_;
  Policy policy_;
  Distribution distribution_, law_;
  Sequences sequences_;
  uint64_t clock_ = 0;                 // of commands
  std::vector<DraftSequence*> ready_;  // of the step
  std::vector<Slice> slices_;          // of the step
  StepBatch batch_;
  ChunkMessage chunk_;
  DraftEngineCounters counters_;
};

}  // namespace brigade::runtime::draft_worker
