// One microbatch's way through the model as the engine sees it: begin, advance until done, read
// what came out. Nothing here waits; when advance() says kWaiting the step thread drives other
// microbatches or sleeps on the waker, which is woken when going on makes sense. One step thread at
// a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/waker.h"
#include "kernels/ops/sampling_args.h"
#include "runtime/model/expert_use.h"
#include "runtime/model/row_output.h"
#include "runtime/model/step_shape.h"

namespace brigade::runtime {

// Rows of one step: prefill chunks and decodes mixed, in any order; rows of one sequence ascend in
// position. Host memory, reused from step to step; capacities are planned at start.
struct StepBatch {
  std::vector<int32_t> tokens;        // [rows]
  std::vector<int32_t> positions;     // [rows]
  std::vector<int32_t> row_sequence;  // [rows], index into block_tables
  std::vector<int64_t> slots;         // [rows], block * block_size + offset
  std::vector<int32_t> block_tables;  // [sequences, max_blocks]
  int sequences = 0;
  int max_blocks = 0;
  std::vector<int32_t> logit_rows;  // rows that a token is to follow, ascending
  std::vector<RowOutput> outputs;   // [logit_rows]; empty: logits of all
  // Of the rows of kLaw, in their order; without lists, top_k from 1 to kMaxLawTokens.
  std::vector<kernels::PolicyRow> policies;
  int rows() const { return static_cast<int>(tokens.size()); }
  RowOutput output(int index) const {
    return outputs.empty() ? RowOutput::kLogits : outputs[static_cast<size_t>(index)];
  }
};

struct StepLimits {
  int max_rows = 0;  // token budget of one microbatch
  int max_sequences = 0;
  int max_blocks = 0;  // per sequence
  int max_logit_rows = 0;
};

// Geometry the scheduler needs; it knows blocks and bytes, never heads.
struct KvGeometry {
  int block_size = 16;  // positions
  int num_blocks = 0;
  int64_t bytes_per_block = 0;
};

class StepModel {
 public:
  virtual ~StepModel() = default;
  enum class Progress { kDone, kWaiting };

  virtual int vocab() const = 0;
  virtual const StepLimits& limits() const = 0;
  // `batch` must stay unchanged until done. `waker` is woken whenever advance() may get further.
  virtual absl::Status begin(const StepBatch& batch, kernels::Waker* waker) = 0;
  virtual absl::StatusOr<Progress> advance() = 0;
  // After kDone, until the next begin: of the logit row of that index, on the host. [vocab] where
  // kLogits were asked for.
  virtual std::span<const float> logits(int index) const = 0;
  // ... where something else was.
  virtual RowLaw law(int index) const = 0;
  // After kDone, until the next begin: rows (ascending) that lacked an expert, which nobody holds
  // at the moment, and every later row of their sequences. What they left in their KV slots and
  // logits is meaningless; the caller computes these rows again later.
  virtual std::span<const int32_t> parked_rows() const { return {}; }
  // Another number whenever parked rows may succeed now; the waker of the last begin is woken.
  virtual uint64_t cluster_version() const { return 0; }
  // After kWaiting: the number of the exchange that it waits for, counted from 1; 0: something
  // else.
  virtual uint64_t exchange_under_way() const { return 0; }
  // Copies a whole KV block (all layers), for sequences that part after a shared partial block.
  virtual absl::Status copy_block(int from, int to) = 0;
  // Rows per expert since start, without those of parked rows: [moe layer][expert].
  virtual std::vector<std::vector<int64_t>> expert_rows() const = 0;
  // Which experts those rows chose, as of the last step; for whoever reads it every step. Null: a
  // dense model, or nobody counts.
  virtual const ExpertUse* expert_use() const { return nullptr; }
  virtual StepGraphCounts graph_counts() const { return {}; }
};

}  // namespace brigade::runtime
