// Drives a loaded model without an engine: gives sequences KV blocks in a scattered order, feeds
// tokens in chunks of any size, waits on the waker with a deadline. For tests; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/core/waker.h"
#include "runtime/model/load_model.h"

namespace brigade::tests {

struct RunnerOptions {
  kernels::DeviceKind device = kernels::DeviceKind::kCpu;
  int threads = 1;
  int max_sequences = 4;
  int max_rows = 64;
  runtime::KvCacheOptions kv{.block_size = 4, .num_blocks = 256, .poison = true};
  runtime::ExchangeFactory make_exchange;  // empty: all experts are local
};

class ModelRunner {
 public:
  static absl::StatusOr<std::unique_ptr<ModelRunner>> open(const std::string& folder,
                                                           const RunnerOptions& options);

  // Tokens to append to a sequence in the next step.
  struct Piece {
    int sequence = 0;
    std::vector<int32_t> tokens;
  };
  using Rows = std::vector<std::vector<float>>;

  // One step over all pieces, in their order; logits of every row.
  absl::StatusOr<Rows> step(const std::vector<Piece>& pieces);
  // One step that asks for `outputs` of its rows; what came out is the pass's.
  absl::Status run(const std::vector<Piece>& pieces,
                   const std::vector<runtime::RowOutput>& outputs = {},
                   const std::vector<kernels::PolicyRow>& policies = {});
  // Feeds all of `tokens` to a sequence in steps of at most `chunk` rows; logits of every row.
  absl::StatusOr<Rows> feed(int sequence, const std::vector<int32_t>& tokens, int chunk);
  // Forgets a sequence's positions from `length` on (their slots are used again).
  void restart(int sequence, int length = 0) { lengths_[sequence] = length; }

  runtime::LoadedModel& model() { return model_; }

 private:
  ModelRunner() = default;

  std::unique_ptr<kernels::Device> device_;
  runtime::LoadedModel model_;
  kernels::Waker waker_;
  runtime::StepBatch batch_;
  std::vector<int> lengths_;  // [max_sequences]: positions fed
};

// Index of the largest value; ties to the lower index.
int32_t argmax(const std::vector<float>& row);

}  // namespace brigade::tests
