// The forward pass on an emulated GPU: the CPU's logits bit by bit, and no logits from a GPU that
// failed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "kernels/core/status.h"
#include "kernels/cuda/device_cuda.h"
#include "runtime/model/load_model.h"
#include "tests/cuda_emulation/runtime/control.h"
#include "tests/support/test_env.h"

namespace brigade::runtime {
namespace {

using Progress = StepModel::Progress;

constexpr int kRows = 9;

struct Loaded {
  Loaded(absl::StatusOr<std::unique_ptr<kernels::Device>> made, const std::string& golden,
         kernels::DType kv) {
    EXPECT_TRUE(made.ok()) << made.status();
    device = *std::move(made);
    LoadOptions options;
    options.kv = {.dtype = kv, .block_size = 4, .num_blocks = 32, .poison = true};
    options.limits = {.max_rows = 16, .max_sequences = 4, .max_blocks = 8, .max_logit_rows = 16};
    auto loaded =
        load_model(tests::source_dir() + "/tests/data/golden/" + golden, *device, options);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    model = *std::move(loaded);
  }
  std::unique_ptr<kernels::Device> device;
  LoadedModel model;
};

absl::StatusOr<std::unique_ptr<kernels::Device>> gpu(
    kernels::CudaMath math = kernels::CudaMath::kIdentical) {
  return kernels::cuda::create_device({.kind = kernels::DeviceKind::kCuda, .cuda_math = math});
}

// Rows [first, first + count) of one sequence.
StepBatch rows_of(int first, int count) {
  StepBatch batch;
  batch.sequences = 1;
  batch.max_blocks = 8;
  for (int b = 0; b < 8; ++b) batch.block_tables.push_back(7 - b);
  for (int position = first; position < first + count; ++position) {
    batch.logit_rows.push_back(batch.rows());
    batch.tokens.push_back(position * 7 % 90);
    batch.positions.push_back(position);
    batch.row_sequence.push_back(0);
    batch.slots.push_back((7 - position / 4) * 4 + position % 4);
  }
  return batch;
}

// `at_wait(n)` is called before the n-th wait.
template <typename AtWait>
absl::Status run(StepModel& pass, const StepBatch& batch, AtWait at_wait) {
  kernels::Waker waker;
  RETURN_IF_ERROR(pass.begin(batch, &waker));
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  for (int waits = 0;; ++waits) {
    const absl::StatusOr<Progress> progress = pass.advance();
    if (!progress.ok()) return progress.status();
    if (*progress == Progress::kDone) return absl::OkStatus();
    if (absl::Now() >= deadline) return absl::DeadlineExceededError("the step did not end");
    at_wait(waits);
    waker.wait_until(std::min(deadline, absl::Now() + absl::Milliseconds(100)));
  }
}

// A prompt in two chunks, then one row.
std::vector<float> logits_of(Loaded& loaded) {
  std::vector<float> all;
  StepModel& pass = *loaded.model.passes[0];
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{{0, 5}, {5, 3}, {8, 1}}) {
    const StepBatch batch = rows_of(first, count);
    const absl::Status status = run(pass, batch, [](int) {});
    EXPECT_TRUE(status.ok()) << status;
    for (int row = 0; row < count; ++row) {
      const auto logits = pass.logits(row);
      all.insert(all.end(), logits.begin(), logits.end());
    }
  }
  return all;
}

TEST(ForwardPassOnCuda, GivesTheLogitsOfTheCpu) {
  const std::pair<const char*, kernels::DType> cases[] = {
      {"llama_gqa_tied", kernels::DType::kF32},
      {"llama_bf16", kernels::DType::kBF16},
      {"mixtral_odd_sizes", kernels::DType::kF16},
      {"mixtral_sharded_bf16", kernels::DType::kBF16},
  };
  for (const auto& [golden, kv] : cases) {
    SCOPED_TRACE(golden);
    Loaded cpu(kernels::Device::create(kernels::DeviceKind::kCpu, 1), golden, kv);
    Loaded cuda(gpu(), golden, kv);
    const std::vector<float> expected = logits_of(cpu), actual = logits_of(cuda);
    ASSERT_EQ(expected.size(), actual.size());
    EXPECT_EQ(0, std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(float)));
  }
}

// Rows whose best token is asked for send four bytes each to the host, those of a law its first
// candidates, and no logits.
TEST(ForwardPassOnCuda, CopiesOnlyTheLogitsThatAreWanted) {
  Loaded cuda(gpu(), "llama_gqa_tied", kernels::DType::kF32);  // dense: nothing else is copied
  StepModel& pass = *cuda.model.passes[0];
  StepBatch batch = rows_of(0, kRows);
  const auto bytes_of = [&](const std::vector<RowOutput>& outputs) {
    batch.outputs = outputs;
    const uint64_t before = cuda_emulation::counters().bytes_to_host;
    const absl::Status status = run(pass, batch, [](int) {});
    EXPECT_TRUE(status.ok()) << status;
    return cuda_emulation::counters().bytes_to_host - before;
  };
  const size_t row_bytes = static_cast<size_t>(pass.vocab()) * sizeof(float);
  EXPECT_EQ(bytes_of({}), kRows * row_bytes);
  std::vector<std::vector<float>> logits;
  std::vector<int32_t> best;
  for (int row = 0; row < kRows; ++row) {
    logits.emplace_back(pass.logits(row).begin(), pass.logits(row).end());
    const auto largest = std::max_element(logits.back().begin(), logits.back().end());
    best.push_back(static_cast<int32_t>(largest - logits.back().begin()));
  }
  std::vector<RowOutput> outputs(kRows, RowOutput::kBestToken);
  EXPECT_EQ(bytes_of(outputs), kRows * sizeof(int32_t));
  for (int row = 0; row < kRows; ++row) {
    ASSERT_EQ(pass.law(row).tokens.size(), 1u);
    EXPECT_EQ(pass.law(row).tokens[0], best[static_cast<size_t>(row)]);
  }
  outputs[2] = outputs[5] = outputs[6] = RowOutput::kLogits;
  outputs[0] = outputs[4] = RowOutput::kLaw;
  batch.policies.assign(2, {.temperature = 0.7, .top_k = 1});
  const size_t law_bytes = sizeof(int32_t) + kMaxLawTokens * (sizeof(int32_t) + sizeof(double));
  EXPECT_EQ(bytes_of(outputs), 3 * row_bytes + 2 * law_bytes + (kRows - 5) * sizeof(int32_t));
  for (int row = 0; row < kRows; ++row) {
    const auto at = static_cast<size_t>(row);
    if (outputs[at] == RowOutput::kLogits) {
      EXPECT_EQ(0, std::memcmp(pass.logits(row).data(), logits[at].data(), row_bytes)) << row;
    } else {
      EXPECT_EQ(pass.law(row).tokens[0], best[at]) << row;
    }
  }
}

// Weights are kept as rows there. These matrices are too narrow for the library: sums in f32, in
// another order.
TEST(ForwardPassOnCuda, ModeFastIsCloseToTheCpu) {
  for (const char* golden : {"llama_bf16", "mixtral_odd_sizes", "mixtral_sharded_bf16"}) {
    SCOPED_TRACE(golden);
    Loaded cpu(kernels::Device::create(kernels::DeviceKind::kCpu, 1), golden, kernels::DType::kF32);
    Loaded cuda(gpu(kernels::CudaMath::kFast), golden, kernels::DType::kF32);
    const std::vector<float> expected = logits_of(cpu), actual = logits_of(cuda);
    ASSERT_EQ(expected.size(), actual.size());
    float largest = 0, error = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_FALSE(std::isnan(actual[i])) << i;
      largest = std::max(largest, std::fabs(expected[i]));
      error = std::max(error, std::fabs(actual[i] - expected[i]));
    }
    std::printf("%s: largest error %.1e of the largest logit\n", golden, error / largest);
    EXPECT_LE(error, 1e-4f * largest);
  }
}

// Slow streams, so that the step has enqueued all its work when the kernel faults: the error can
// only come back through the events.
TEST(ForwardPassOnCuda, AFaultOfTheGpuIsAnErrorOfTheStep) {
  for (const int failing_wait : {0, 1, 2}) {
    SCOPED_TRACE(failing_wait);
    Loaded cuda(gpu(), "mixtral_top2", kernels::DType::kF32);  // two layers: three waits
    cuda_emulation::set_stream_delay(3000, 1);
    bool injected = false;
    const absl::Status status = run(*cuda.model.passes[0], rows_of(0, kRows), [&](int wait) {
      if (wait < failing_wait || injected) return;
      cuda_emulation::inject_fault(cudaErrorIllegalAddress);
      injected = true;
    });
    cuda_emulation::set_stream_delay(0, 0);
    EXPECT_TRUE(injected);
    EXPECT_EQ(absl::StatusCode::kInternal, status.code()) << status;
    cuda_emulation::reset_faults();
  }
}

}  // namespace
}  // namespace brigade::runtime
