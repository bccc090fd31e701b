// The forward pass with recorded graphs on an emulated GPU: over changing shapes, sequences and
// places of the experts' answers it gives the CPU's logits bit by bit, with and without graphs.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "expert_parallel/exchange/local_exchange.h"
#include "gtest/gtest.h"
#include "kernels/core/status.h"
#include "kernels/cuda/device_cuda.h"
#include "runtime/model/load_model.h"
#include "tests/cuda_emulation/runtime/control.h"
#include "tests/support/test_env.h"

namespace brigade::runtime {
namespace {

using expert_parallel::Exchange;
using expert_parallel::ExpertShard;
using kernels::Device;

constexpr int kBlock = 4, kSequences = 4, kBlocksEach = 8;

// What an exchange may do that the local one does not; shared by all passes of a test.
struct ExchangeScript {
  bool elsewhere = false;  // answers are in another buffer, and the first one is spoilt
  bool park_all = false;   // nobody holds an expert
};

class ScriptedExchange : public Exchange {
 public:
  ScriptedExchange(std::unique_ptr<Exchange> inner, kernels::Buffer second, size_t row_bytes,
                   const ExchangeScript* script)
      : inner_(std::move(inner)),
        second_(std::move(second)),
        row_bytes_(row_bytes),
        script_(script) {}
  absl::Status begin(kernels::Stream& stream, const expert_parallel::LayerRows& layer,
                     kernels::Waker* waker) override {
    stream_ = &stream;
    rows_ = layer.rows;
    return inner_->begin(stream, layer, waker);
  }
  absl::StatusOr<bool> poll() override {
    ASSIGN_OR_RETURN(const bool done, inner_->poll());
    answers_ = inner_->answers();
    parked_.clear();
    if (script_->park_all) {
      for (int row = 0; row < rows_; ++row) parked_.push_back(row);
    }
    const size_t bytes = static_cast<size_t>(rows_) * row_bytes_;
    if (script_->elsewhere) {
      RETURN_IF_ERROR(stream_->copy_on_device(second_.data(), answers_, bytes));
      RETURN_IF_ERROR(stream_->fill_bytes(const_cast<void*>(answers_), 0xff, bytes));
      answers_ = second_.data();
    } else {
      RETURN_IF_ERROR(stream_->fill_bytes(second_.data(), 0xff, bytes));
    }
    return done;
  }
  const void* answers() const override { return answers_; }
  kernels::DType answer_dtype() const override { return inner_->answer_dtype(); }
  std::span<const int32_t> parked_rows() const override { return parked_; }

 private:
  const std::unique_ptr<Exchange> inner_;
  const kernels::Buffer second_;
  const size_t row_bytes_;
  const ExchangeScript* const script_;
  kernels::Stream* stream_ = nullptr;
  int rows_ = 0;
  const void* answers_ = nullptr;
  std::vector<int32_t> parked_;
};

class Pass {
 public:
  Pass(absl::StatusOr<std::unique_ptr<Device>> made, const std::string& golden, bool graphs,
       const ExchangeScript* script) {
    EXPECT_TRUE(made.ok()) << made.status();
    device_ = *std::move(made);
    LoadOptions options;
    options.kv = {.block_size = kBlock, .num_blocks = kSequences * kBlocksEach, .poison = true};
    options.limits = {.max_rows = 16,
                      .max_sequences = kSequences,
                      .max_blocks = kBlocksEach,
                      .max_logit_rows = 16};
    options.graphs.on = graphs;
    options.graphs.warn = [](const std::string& sentence) { ADD_FAILURE() << sentence; };
    options.make_exchange = [script](Device& device, const ExpertShard& shard,
                                     int max_rows) -> absl::StatusOr<std::unique_ptr<Exchange>> {
      ASSIGN_OR_RETURN(auto inner, expert_parallel::make_local_exchange(device, shard, max_rows));
      const size_t row_bytes = sizeof(float) * static_cast<size_t>(shard.geometry().top_k) *
                               static_cast<size_t>(shard.geometry().hidden);
      ASSIGN_OR_RETURN(auto second, kernels::Buffer::allocate(
                                        device, row_bytes * static_cast<size_t>(max_rows)));
      return std::make_unique<ScriptedExchange>(std::move(inner), std::move(second), row_bytes,
                                                script);
    };
    auto loaded =
        load_model(tests::source_dir() + "/tests/data/golden/" + golden, *device_, options);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    model_ = *std::move(loaded);
  }

  std::vector<float> run(const StepBatch& batch) {
    const absl::Status status = advance(batch);
    EXPECT_TRUE(status.ok()) << status;
    std::vector<float> all;
    const StepModel& pass = *model_.passes[0];
    for (int row = 0; status.ok() && row < static_cast<int>(batch.logit_rows.size()); ++row) {
      if (batch.output(row) == RowOutput::kLogits) {
        all.insert(all.end(), pass.logits(row).begin(), pass.logits(row).end());
      } else {
        for (const int32_t token : pass.law(row).tokens) all.push_back(static_cast<float>(token));
        for (const double p : pass.law(row).probabilities) all.push_back(static_cast<float>(p));
      }
    }
    return all;
  }
  StepGraphCounts counts() const { return model_.passes[0]->graph_counts(); }
  int segments() const { return model_.experts.moe_layers + 1; }

 private:
  absl::Status advance(const StepBatch& batch) {
    StepModel& pass = *model_.passes[0];
    kernels::Waker waker;
    RETURN_IF_ERROR(pass.begin(batch, &waker));
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (true) {
      ASSIGN_OR_RETURN(const StepModel::Progress progress, pass.advance());
      if (progress == StepModel::Progress::kDone) return absl::OkStatus();
      if (absl::Now() >= deadline) return absl::DeadlineExceededError("the step did not end");
      waker.wait_until(deadline);
    }
  }

  std::unique_ptr<Device> device_;
  LoadedModel model_;
};

// Rows to add to a sequence, of which the last `logits` are wanted.
struct Piece {
  int sequence;
  int rows;
  int logits;
  RowOutput output = RowOutput::kLogits;
};

class ForwardPassGraphs : public ::testing::TestWithParam<const char*> {
 protected:
  static absl::StatusOr<std::unique_ptr<Device>> gpu() {
    return kernels::cuda::create_device({.kind = kernels::DeviceKind::kCuda});
  }

  StepBatch batch_of(const std::vector<Piece>& pieces) {
    StepBatch batch;
    batch.sequences = static_cast<int>(pieces.size());
    for (const Piece& piece : pieces) {
      const int blocks = (lengths_[piece.sequence] + piece.rows + kBlock - 1) / kBlock;
      batch.max_blocks = std::max(batch.max_blocks, blocks);
    }
    batch.max_blocks = block_table_width(batch.max_blocks, kBlocksEach);
    for (size_t i = 0; i < pieces.size(); ++i) {
      add(pieces[i], static_cast<int32_t>(i), &batch);
      lengths_[pieces[i].sequence] += pieces[i].rows;
    }
    return batch;
  }

  // One step on all three: equal bits.
  void step(const std::vector<Piece>& pieces) {
    const StepBatch batch = batch_of(pieces);
    const auto wanted = [&](RowOutput output) {
      return static_cast<int>(std::count(batch.outputs.begin(), batch.outputs.end(), output));
    };
    ++shapes_[{batch.rows(), batch.sequences, batch.max_blocks,
               static_cast<int>(batch.logit_rows.size()), wanted(RowOutput::kLogits),
               wanted(RowOutput::kLaw)}];
    const std::vector<float> expected = cpu_.run(batch);
    for (Pass* pass : {&recorded_, &plain_}) {
      const std::vector<float> actual = pass->run(batch);
      ASSERT_EQ(actual.size(), expected.size());
      ASSERT_EQ(std::memcmp(actual.data(), expected.data(), expected.size() * sizeof(float)), 0)
          << (pass == &recorded_ ? "with graphs, step " : "without graphs, step ") << steps_;
    }
    ++steps_;
  }
  void restart(int sequence, int length) { lengths_[sequence] = length; }

  ExchangeScript script_;
  Pass cpu_{Device::create(kernels::DeviceKind::kCpu, 1), GetParam(), true, &script_};
  Pass recorded_{gpu(), GetParam(), true, &script_};
  Pass plain_{gpu(), GetParam(), false, &script_};
  std::map<std::vector<int>, int> shapes_;  // how often each was seen

 private:
  // Blocks of a sequence descend; of every pair of sequences the blocks alternate.
  static int block_of(int sequence, int index) {
    return (kBlocksEach - 1 - index) * kSequences + sequence;
  }
  void add(const Piece& piece, int32_t index, StepBatch* batch) {
    const int begin = lengths_[piece.sequence], end = begin + piece.rows;
    for (int block = 0; block < batch->max_blocks; ++block) {
      const bool used = block * kBlock < end;
      batch->block_tables.push_back(used ? block_of(piece.sequence, block) : -1);
    }
    for (int position = begin; position < end; ++position) {
      if (position >= end - piece.logits) {
        batch->logit_rows.push_back(batch->rows());
        batch->outputs.push_back(piece.output);
        if (piece.output == RowOutput::kLaw) {
          batch->policies.push_back({.temperature = 0.5 + steps_ % 3, .top_k = 2 + steps_ % 5});
        }
      }
      batch->tokens.push_back((position * 7 + piece.sequence * 31 + steps_ * 13) % 90);
      batch->positions.push_back(position);
      batch->row_sequence.push_back(index);
      batch->slots.push_back(block_of(piece.sequence, position / kBlock) * kBlock +
                             position % kBlock);
    }
  }

  int lengths_[kSequences] = {};
  int steps_ = 0;
};

// Decode steps and verifying steps of one to three sequences; before each of them a piece of
// another sequence's prompt, so that whatever a graph should not read holds something else. A shape
// that is recorded too early for another one lacks what that one needs: twice means recorded.
TEST_P(ForwardPassGraphs, GiveTheBitsOfTheCpuOverChangingShapes) {
  const uint64_t before = cuda_emulation::counters().graph_launches;
  constexpr RowOutput kBest = RowOutput::kBestToken, kLaw = RowOutput::kLaw;
  const std::vector<std::vector<Piece>> kinds = {
      {{0, 1, 1}, {1, 1, 1}},             // two decodes
      {{0, 1, 1}, {1, 1, 1}},             // twice
      {{0, 2, 1}, {1, 2, 1}},             // more rows, all else equal
      {{1, 1, 1, kBest}, {0, 1, 1}},      // the best token of a row
      {{1, 1, 1}, {0, 1, 1, kLaw}},       // the law of a row
      {{1, 1, 1}, {0, 1, 0}},             // less logits
      {{1, 1, 1}, {0, 1, 0}},             // twice
      {{1, 1, 1, kBest}, {0, 1, 1}},      // as many logits, and a row more
      {{1, 1, 1}, {2, 1, 1}, {0, 1, 1}},  // three decodes
      {{0, 3, 3}},                        // one sequence with two drafts
  };
  step({{0, 4, 1}, {1, 4, 0}, {2, 4, 1}});
  for (int round = 0; round < 3; ++round) {
    if (round == 2) step({{0, 4, 1}, {1, 4, 1}, {2, 4, 1}});
    // The last round needs wider block tables.
    const int begin = round < 2 ? 4 : 8;
    for (const std::vector<Piece>& kind : kinds) {
      restart(3, round);
      step({{3, 9 + round, 2}});
      for (int sequence = 0; sequence < 3; ++sequence) restart(sequence, begin);
      step(kind);
      if (HasFatalFailure()) return;
    }
    for (int sequence = 0; sequence < 3; ++sequence) restart(sequence, 4);
  }
  int recorded = 0, launched = 0;
  for (const auto& [shape, times] : shapes_) {
    recorded += times > 1;
    launched += times - 1;
  }
  const StepGraphCounts counts = recorded_.counts();
  EXPECT_GE(recorded, 8) << "shapes seen twice";
  EXPECT_EQ(counts.shapes, recorded);
  EXPECT_EQ(counts.recordings, recorded * recorded_.segments());
  EXPECT_EQ(counts.launches, launched * recorded_.segments());
  EXPECT_EQ(cuda_emulation::counters().graph_launches - before,
            static_cast<uint64_t>(counts.launches));
  EXPECT_EQ(plain_.counts().launches, 0);
  EXPECT_EQ(cpu_.counts().recordings, 0);
}

TEST_P(ForwardPassGraphs, FollowTheAnswersAndSurviveStepsThatEndEarly) {
  if (recorded_.segments() == 1) return;  // no experts
  const std::vector<Piece> decode = {{0, 1, 1}, {1, 1, 1}};
  step({{0, 5, 1}, {1, 5, 1}});
  for (int i = 0; i < 3; ++i) step(decode);
  for (const bool elsewhere : {true, true, false, false}) {
    restart(0, 5);
    restart(1, 5);
    script_.elsewhere = elsewhere;
    for (int i = 0; i < 2; ++i) step(decode);
    if (HasFatalFailure()) return;
  }
  script_.park_all = true;
  const StepBatch parked = batch_of(decode);
  for (Pass* pass : {&cpu_, &recorded_, &plain_}) {
    for (const float logit : pass->run(parked)) ASSERT_NE(logit, logit);
  }
  script_.park_all = false;
  for (int sequence : {0, 1}) restart(sequence, 5);
  for (int i = 0; i < 3; ++i) step(decode);
  EXPECT_GT(recorded_.counts().launches, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, ForwardPassGraphs,
                         ::testing::Values("llama_gqa_tied", "mixtral_top2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace brigade::runtime
