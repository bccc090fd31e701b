#include "runtime/engine/batch_builder.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "runtime/engine/sequence.h"
#include "runtime/model/step_shape.h"
#include "runtime/speculative/target_row.h"

namespace brigade::runtime {

BatchBuilder::BatchBuilder(const StepLimits& limits, int block_size)
    : block_size_(block_size), max_blocks_(limits.max_blocks) {
  const auto rows = static_cast<size_t>(limits.max_rows);
  batch_.tokens.reserve(rows);
  batch_.positions.reserve(rows);
  batch_.row_sequence.reserve(rows);
  batch_.slots.reserve(rows);
  batch_.block_tables.reserve(static_cast<size_t>(limits.max_sequences) *
                              static_cast<size_t>(limits.max_blocks));
  batch_.logit_rows.reserve(static_cast<size_t>(limits.max_logit_rows));
  batch_.outputs.reserve(static_cast<size_t>(limits.max_logit_rows));
  batch_.policies.reserve(static_cast<size_t>(limits.max_logit_rows));
}

const StepBatch& BatchBuilder::build(const StepPlan& plan) {
  batch_.tokens.clear();
  batch_.positions.clear();
  batch_.row_sequence.clear();
  batch_.slots.clear();
  batch_.logit_rows.clear();
  batch_.outputs.clear();
  batch_.policies.clear();
  batch_.sequences = static_cast<int>(plan.slices.size());
  batch_.max_blocks = 0;
  for (const StepSlice& slice : plan.slices) {
    const int used = (slice.start + slice.count + block_size_ - 1) / block_size_;
    batch_.max_blocks = std::max(batch_.max_blocks, used);
  }
  batch_.max_blocks = block_table_width(batch_.max_blocks, max_blocks_);
  const auto width = static_cast<size_t>(batch_.max_blocks);
  // -1 beyond a sequence's blocks: whoever reads there fails at once.
  batch_.block_tables.assign(plan.slices.size() * width, -1);
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const std::vector<int>& blocks = plan.slices[i].sequence->blocks;
    std::copy_n(blocks.begin(), std::min(blocks.size(), width),
                batch_.block_tables.begin() + static_cast<std::ptrdiff_t>(i * width));
    add_rows(plan.slices[i], static_cast<int>(i));
  }
  CHECK(batch_.rows() == plan.rows);
  return batch_;
}

void BatchBuilder::add_rows(const StepSlice& slice, int sequence_index) {
  const ScheduledSequence& sequence = *slice.sequence;
  for (int position = slice.start; position < slice.start + slice.count; ++position) {
    const int block = sequence.blocks[static_cast<size_t>(position / block_size_)];
    const auto at = static_cast<size_t>(position);
    batch_.tokens.push_back(at < sequence.tokens.size()
                                ? sequence.tokens[at]
                                : sequence.drafts[at - sequence.tokens.size()]);
    batch_.positions.push_back(position);
    batch_.row_sequence.push_back(sequence_index);
    batch_.slots.push_back(int64_t{block} * block_size_ + position % block_size_);
  }
  if (!slice.wants_logits) return;
  const auto& request = *static_cast<const ActiveRequest*>(sequence.request);
  const auto& asking = static_cast<const Sequence&>(sequence);
  const PolicyInput input = policy_input(request, asking);
  const RowOutput output = row_output(request, asking);
  for (int row = batch_.rows() - 1 - slice.drafts; row < batch_.rows(); ++row) {
    ask_for_row(row, output, input, &batch_);
  }
}

}  // namespace brigade::runtime
