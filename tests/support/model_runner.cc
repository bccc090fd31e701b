#include "tests/support/model_runner.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/core/status.h"

namespace brigade::tests {

using runtime::StepModel;

int32_t argmax(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::open(const std::string& folder,
                                                               const RunnerOptions& options) {
  std::unique_ptr<ModelRunner> runner(new ModelRunner());
  ASSIGN_OR_RETURN(runner->device_, kernels::Device::create(options.device, options.threads));
  runtime::LoadOptions load;
  load.kv = options.kv;
  load.make_exchange = options.make_exchange;
  load.limits = {.max_rows = options.max_rows,
                 .max_sequences = options.max_sequences,
                 .max_blocks = options.kv.num_blocks / options.max_sequences,
                 .max_logit_rows = options.max_rows};
  ASSIGN_OR_RETURN(runner->model_, runtime::load_model(folder, *runner->device_, load));
  runner->lengths_.assign(options.max_sequences, 0);
  return runner;
}

absl::Status ModelRunner::run(const std::vector<Piece>& pieces,
                              const std::vector<runtime::RowOutput>& outputs,
                              const std::vector<kernels::PolicyRow>& policies) {
  StepModel& pass = *model_.passes[0];
  const runtime::KvGeometry& kv = model_.kv->geometry();
  const int sequences = static_cast<int>(lengths_.size()), blocks = pass.limits().max_blocks;
  batch_ = {};
  batch_.outputs = outputs;
  batch_.policies = policies;
  batch_.sequences = sequences;
  batch_.max_blocks = blocks;
  // Neighbouring logical blocks lie far apart, and sequences interleave.
  for (int s = 0; s < sequences; ++s) {
    for (int b = 0; b < blocks; ++b)
      batch_.block_tables.push_back((blocks - 1 - b) * sequences + s);
  }
  for (const Piece& piece : pieces) {
    for (const int32_t token : piece.tokens) {
      const int position = lengths_[piece.sequence]++;
      const int64_t block =
          batch_.block_tables[size_t(piece.sequence) * blocks + position / kv.block_size];
      batch_.logit_rows.push_back(batch_.rows());
      batch_.tokens.push_back(token);
      batch_.positions.push_back(position);
      batch_.row_sequence.push_back(piece.sequence);
      batch_.slots.push_back(block * kv.block_size + position % kv.block_size);
    }
  }
  RETURN_IF_ERROR(pass.begin(batch_, &waker_));
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (true) {
    ASSIGN_OR_RETURN(const StepModel::Progress progress, pass.advance());
    if (progress == StepModel::Progress::kDone) return absl::OkStatus();
    if (!waker_.wait_until(deadline)) return absl::DeadlineExceededError("the step does not end");
  }
}

absl::StatusOr<ModelRunner::Rows> ModelRunner::step(const std::vector<Piece>& pieces) {
  RETURN_IF_ERROR(run(pieces));
  Rows rows;
  for (int i = 0; i < batch_.rows(); ++i) {
    const auto logits = model_.passes[0]->logits(i);
    rows.emplace_back(logits.begin(), logits.end());
  }
  return rows;
}

absl::StatusOr<ModelRunner::Rows> ModelRunner::feed(int sequence,
                                                    const std::vector<int32_t>& tokens, int chunk) {
  Rows rows;
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const size_t end = std::min(tokens.size(), at + chunk);
    ASSIGN_OR_RETURN(Rows some, step({{sequence, {tokens.begin() + at, tokens.begin() + end}}}));
    rows.insert(rows.end(), std::make_move_iterator(some.begin()),
                std::make_move_iterator(some.end()));
  }
  return rows;
}

}  // namespace brigade::tests
