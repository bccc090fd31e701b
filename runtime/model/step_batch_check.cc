#include "runtime/model/step_batch_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

absl::Status bad(const char* field, int64_t value, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("step batch: ", field, " ", value, " ", why));
}

absl::Status check_policies(const StepBatch& batch) {
  const auto laws = std::count(batch.outputs.begin(), batch.outputs.end(), RowOutput::kLaw);
  if (laws != static_cast<int64_t>(batch.policies.size())) {
    return bad("policies", static_cast<int64_t>(batch.policies.size()),
               absl::StrCat("entries for ", laws, " rows whose law is wanted"));
  }
  for (const kernels::PolicyRow& policy : batch.policies) {
    if (policy.top_k < 1 || policy.top_k > kMaxLawTokens) {
      return bad("policies: top_k", policy.top_k, absl::StrCat("outside 1 to ", kMaxLawTokens));
    }
    if (policy.bias.count + policy.seen.count + policy.allowed.count + policy.banned.count != 0) {
      return bad("policies", policy.top_k, "is the top_k of one with a list");
    }
  }
  return absl::OkStatus();
}

absl::Status check_shape(const StepBatch& batch, const BatchBounds& bounds) {
  const StepLimits& limits = bounds.limits;
  const size_t rows = batch.tokens.size();
  if (rows == 0 || rows > static_cast<size_t>(limits.max_rows)) {
    return bad("rows", static_cast<int64_t>(rows), absl::StrCat("outside 1 to ", limits.max_rows));
  }
  if (batch.positions.size() != rows || batch.row_sequence.size() != rows ||
      batch.slots.size() != rows) {
    return bad("rows", static_cast<int64_t>(rows), "differ from the length of another list");
  }
  if (batch.sequences < 1 || batch.sequences > limits.max_sequences) {
    return bad("sequences", batch.sequences, absl::StrCat("outside 1 to ", limits.max_sequences));
  }
  if (batch.max_blocks < 1 || batch.max_blocks > limits.max_blocks) {
    return bad("max_blocks", batch.max_blocks, absl::StrCat("outside 1 to ", limits.max_blocks));
  }
  const size_t table = static_cast<size_t>(batch.sequences) * batch.max_blocks;
  if (batch.block_tables.size() < table) {
    return bad("block_tables", static_cast<int64_t>(batch.block_tables.size()),
               absl::StrCat("entries, fewer than ", table));
  }
  if (batch.logit_rows.size() > static_cast<size_t>(limits.max_logit_rows)) {
    return bad("logit_rows", static_cast<int64_t>(batch.logit_rows.size()),
               absl::StrCat("more than ", limits.max_logit_rows));
  }
  if (!batch.outputs.empty() && batch.outputs.size() != batch.logit_rows.size()) {
    return bad("outputs", static_cast<int64_t>(batch.outputs.size()),
               absl::StrCat("entries for ", batch.logit_rows.size(), " logit rows"));
  }
  return check_policies(batch);
}

absl::Status check_row(const StepBatch& batch, const BatchBounds& bounds, int row) {
  const int32_t token = batch.tokens[row], position = batch.positions[row];
  if (token < 0 || token >= bounds.vocab) {
    return bad("token", token,
               absl::StrCat("of row ", row, " outside the vocabulary of ", bounds.vocab));
  }
  if (position < 0 || position >= bounds.max_positions) {
    return bad("position", position,
               absl::StrCat("of row ", row, " outside ", bounds.max_positions));
  }
  const int32_t sequence = batch.row_sequence[row];
  if (sequence < 0 || sequence >= batch.sequences) {
    return bad("sequence", sequence, absl::StrCat("of row ", row, " outside ", batch.sequences));
  }
  const int last = position / bounds.kv.block_size;
  if (last >= batch.max_blocks) {
    return bad("position", position, absl::StrCat("of row ", row, " is past the block table"));
  }
  const int32_t* table =
      batch.block_tables.data() + static_cast<size_t>(sequence) * batch.max_blocks;
  const int64_t slot =
      int64_t{table[last]} * bounds.kv.block_size + position % bounds.kv.block_size;
  if (batch.slots[row] != -1 && batch.slots[row] != slot) {
    return bad("slot", batch.slots[row],
               absl::StrCat("of row ", row, " is not ", slot, ", its place in the block table"));
  }
  // Rows of a sequence ascend, so its last row checks the whole table.
  const bool ends_sequence =
      row + 1 == batch.rows() || batch.row_sequence[row + 1] != batch.row_sequence[row];
  for (int block = ends_sequence ? 0 : last; block <= last; ++block) {
    if (table[block] < 0 || table[block] >= bounds.kv.num_blocks) {
      return bad("block", table[block],
                 absl::StrCat("of sequence ", sequence, " outside ", bounds.kv.num_blocks));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_batch(const StepBatch& batch, const BatchBounds& bounds) {
  RETURN_IF_ERROR(check_shape(batch, bounds));
  for (int row = 0; row < batch.rows(); ++row) RETURN_IF_ERROR(check_row(batch, bounds, row));
  int32_t previous = -1;
  for (const int32_t row : batch.logit_rows) {
    if (row <= previous || row >= batch.rows()) {
      return bad("logit_rows", row, "is not ascending within the batch");
    }
    previous = row;
  }
  return absl::OkStatus();
}

}  // namespace brigade::runtime
