#include "runtime/model/forward_pass.h"

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "expert_parallel/exchange/local_exchange.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/load_model.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/test_env.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::runtime {
namespace {

using ::testing::HasSubstr;
using Progress = StepModel::Progress;

std::string golden(const std::string& name) {
  return tests::source_dir() + "/tests/data/golden/" + name;
}

LoadOptions small_options() {
  LoadOptions options;
  options.kv = {.block_size = 4, .num_blocks = 32, .poison = true};
  options.limits = {.max_rows = 16, .max_sequences = 4, .max_blocks = 8, .max_logit_rows = 16};
  return options;
}

struct Loaded {
  explicit Loaded(const std::string& folder, const LoadOptions& options = small_options(),
                  kernels::DeviceKind kind = kernels::DeviceKind::kCpu)
      : device(*kernels::Device::create(kind, 2)) {
    auto loaded = load_model(folder, *device, options);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    model = *std::move(loaded);
  }
  std::unique_ptr<kernels::Device> device;
  LoadedModel model;
};

// Rows [first, first + count) of one sequence whose logical blocks are first_block, first_block +
// 1, ...
StepBatch rows_of(const std::vector<int32_t>& tokens, int first, int count, int first_block = 0) {
  StepBatch batch;
  batch.sequences = 1;
  batch.max_blocks = 8;
  for (int b = 0; b < 8; ++b) batch.block_tables.push_back(first_block + b);
  for (int position = first; position < first + count; ++position) {
    batch.logit_rows.push_back(batch.rows());
    batch.tokens.push_back(tokens[position]);
    batch.positions.push_back(position);
    batch.row_sequence.push_back(0);
    batch.slots.push_back((first_block + position / 4) * 4 + position % 4);
  }
  return batch;
}

absl::Status finish(StepModel& pass, kernels::Waker& waker) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (true) {
    const auto progress = pass.advance();
    if (!progress.ok()) return progress.status();
    if (*progress == Progress::kDone) return absl::OkStatus();
    if (!waker.wait_until(deadline)) return absl::DeadlineExceededError("no end");
  }
}

std::vector<float> last_logits(StepModel& pass, const StepBatch& batch) {
  kernels::Waker waker;
  EXPECT_TRUE(pass.begin(batch, &waker).ok());
  const absl::Status status = finish(pass, waker);
  EXPECT_TRUE(status.ok()) << status;
  const auto logits = pass.logits(static_cast<int>(batch.logit_rows.size()) - 1);
  return {logits.begin(), logits.end()};
}

const std::vector<int32_t> kTokens = {5, 9, 3, 14, 7, 11, 2, 8, 30, 21, 4, 6, 13, 12, 10, 1};

// Answers through the local exchange, but only after some polls, each followed by a wake.
class SlowExchange : public expert_parallel::Exchange {
 public:
  SlowExchange(std::unique_ptr<expert_parallel::Exchange> inner, int polls, bool fail)
      : inner_(std::move(inner)), polls_(polls), fail_(fail) {}
  absl::Status begin(kernels::Stream& stream, const expert_parallel::LayerRows& layer,
                     kernels::Waker* waker) override {
    left_ = polls_;
    waker_ = waker;
    return inner_->begin(stream, layer, waker);
  }
  absl::StatusOr<bool> poll() override {
    if (fail_) return absl::UnavailableError("worker 3 is gone");
    if (left_-- > 0) {
      waker_->wake();
      return false;
    }
    return inner_->poll();
  }
  const void* answers() const override { return inner_->answers(); }
  kernels::DType answer_dtype() const override { return inner_->answer_dtype(); }

 private:
  std::unique_ptr<expert_parallel::Exchange> inner_;
  const int polls_;
  const bool fail_;
  int left_ = 0;
  kernels::Waker* waker_ = nullptr;
};

ExchangeFactory slow(int polls, bool fail = false) {
  return [polls, fail](kernels::Device& device, const expert_parallel::ExpertShard& shard,
                       int max_rows) -> absl::StatusOr<std::unique_ptr<expert_parallel::Exchange>> {
    auto inner = expert_parallel::make_local_exchange(device, shard, max_rows);
    if (!inner.ok()) return inner.status();
    return std::make_unique<SlowExchange>(*std::move(inner), polls, fail);
  };
}

// advance() never waits: two passes go on in turn while both exchanges hold their answers back.
TEST(ForwardPass, TwoMicrobatchesTakeTurns) {
  LoadOptions options = small_options();
  Loaded plain(golden("mixtral_top2"), options);
  options.microbatches = 2;
  options.make_exchange = slow(3);
  Loaded loaded(golden("mixtral_top2"), options);
  kernels::Waker waker;
  const StepBatch a = rows_of(kTokens, 0, 9, 0), b = rows_of(kTokens, 0, 4, 16);
  ForwardPass &first = *loaded.model.passes[0], &second = *loaded.model.passes[1];
  ASSERT_TRUE(first.begin(a, &waker).ok());
  ASSERT_TRUE(second.begin(b, &waker).ok());
  int waits = 0;
  for (bool more = true; more;) {
    more = false;
    for (ForwardPass* pass : {&first, &second}) {
      const auto progress = pass->advance();
      ASSERT_TRUE(progress.ok()) << progress.status();
      if (*progress == Progress::kWaiting) {
        more = true;
        ++waits;
      }
    }
    ASSERT_LT(waits, 1000);
  }
  EXPECT_EQ(waits, 2 * 2 * 3);  // passes, layers, polls
  ForwardPass& alone = *plain.model.passes[0];
  const std::vector<float> expected_a = last_logits(alone, a), expected_b = last_logits(alone, b);
  EXPECT_EQ(std::memcmp(first.logits(8).data(), expected_a.data(), expected_a.size() * 4), 0);
  EXPECT_EQ(std::memcmp(second.logits(3).data(), expected_b.data(), expected_b.size() * 4), 0);
}

TEST(ForwardPass, AnErrorOfTheExchangeEndsTheStepAndTheNextOneCanBegin) {
  LoadOptions options = small_options();
  options.make_exchange = slow(0, /*fail=*/true);
  Loaded loaded(golden("mixtral_top2"), options);
  kernels::Waker waker;
  ForwardPass& pass = *loaded.model.passes[0];
  EXPECT_EQ(pass.advance().status().code(), absl::StatusCode::kFailedPrecondition);
  const StepBatch batch = rows_of(kTokens, 0, 3);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(pass.begin(batch, &waker).ok());
    EXPECT_FALSE(pass.begin(batch, &waker).ok());
    EXPECT_THAT(std::string(finish(pass, waker).message()), HasSubstr("worker 3 is gone"));
  }
}

TEST(ForwardPass, BatchesOutsideTheLimitsAreRefusedByField) {
  Loaded loaded(golden("llama_mha"));
  ForwardPass& pass = *loaded.model.passes[0];
  const auto refusal = [&](const std::function<void(StepBatch&)>& spoil) {
    StepBatch batch = rows_of(kTokens, 0, 5);
    spoil(batch);
    const absl::Status status = pass.begin(batch, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](StepBatch& b) { b = StepBatch(); }), HasSubstr("rows 0"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.tokens[2] = 112; }), HasSubstr("token 112 of row 2"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.tokens[2] = -1; }), HasSubstr("token -1 of row 2"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.positions[4] = 256; }),
              HasSubstr("position 256 of row 4"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.positions[4] = 32; }),
              HasSubstr("past the block table"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.row_sequence[0] = 1; }),
              HasSubstr("sequence 1 of row 0"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.slots[3] = 9; }), HasSubstr("slot 9 of row 3 is not 3"));
  EXPECT_THAT(refusal([](StepBatch& b) {
                b.block_tables[0] = 32;
                b.slots[0] = -1;
                b.slots[1] = -1;
                b.slots[2] = -1;
                b.slots[3] = -1;
              }),
              HasSubstr("block 32 of sequence 0"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.slots.pop_back(); }),
              HasSubstr("length of another list"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.block_tables.pop_back(); }),
              HasSubstr("block_tables 7"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.logit_rows = {1, 1}; }), HasSubstr("logit_rows 1"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.logit_rows = {5}; }), HasSubstr("logit_rows 5"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.sequences = 5; }), HasSubstr("sequences 5"));
  EXPECT_THAT(refusal([](StepBatch& b) { b.max_blocks = 9; }), HasSubstr("max_blocks 9"));
  EXPECT_FALSE(last_logits(pass, rows_of(kTokens, 0, 5)).empty());
}

// A sequence that goes on from a copied partial block reads what was written before the copy.
TEST(ForwardPass, CopiedBlocksContinueEqually) {
  for (const auto kind : {kernels::DeviceKind::kCpu, kernels::DeviceKind::kCpuAsync}) {
    Loaded loaded(golden("llama_gqa_tied"), small_options(), kind);
    ForwardPass& pass = *loaded.model.passes[0];
    last_logits(pass, rows_of(kTokens, 0, 6, 0));
    ASSERT_TRUE(pass.copy_block(0, 8).ok());
    ASSERT_TRUE(pass.copy_block(1, 9).ok());
    EXPECT_FALSE(pass.copy_block(0, 32).ok());
    EXPECT_FALSE(pass.copy_block(-1, 0).ok());
    const std::vector<float> copied = last_logits(pass, rows_of(kTokens, 6, 4, 8));
    EXPECT_EQ(copied, last_logits(pass, rows_of(kTokens, 6, 4, 0)));
  }
}

// A chunk without wanted logits still writes its keys and values.
TEST(ForwardPass, OnlyWantedRowsReachTheOutput) {
  Loaded loaded(golden("mixtral_odd_sizes"));
  ForwardPass& pass = *loaded.model.passes[0];
  const std::vector<float> expected = last_logits(pass, rows_of(kTokens, 0, 9, 0));
  StepBatch prefill = rows_of(kTokens, 0, 8, 8);
  prefill.logit_rows.clear();
  kernels::Waker waker;
  ASSERT_TRUE(pass.begin(prefill, &waker).ok());
  ASSERT_TRUE(finish(pass, waker).ok());
  EXPECT_EQ(last_logits(pass, rows_of(kTokens, 8, 1, 8)), expected);
}

// The narrow KV formats: values are rounded once, so chunks and devices still cannot show.
TEST(ForwardPass, NarrowKeysAndValues) {
  for (const kernels::DType dtype : {kernels::DType::kBF16, kernels::DType::kF16}) {
    LoadOptions options = small_options();
    options.kv.dtype = dtype;
    Loaded plain(golden("mixtral_top2"), options);
    Loaded async(golden("mixtral_top2"), options, kernels::DeviceKind::kCpuAsync);
    EXPECT_EQ(plain.model.kv->geometry().bytes_per_block, 2 * 2 * 2 * 4 * 8 * 2);
    const std::vector<float> expected =
        last_logits(*plain.model.passes[0], rows_of(kTokens, 0, 12));
    for (int position = 0; position < 12; ++position) {
      const auto logits = last_logits(*async.model.passes[0], rows_of(kTokens, position, 1));
      if (position == 11) {
        EXPECT_EQ(logits, expected);
      }
    }
  }
}

TEST(ForwardPass, DecodeStepsAllocateNothing) {
  if (!tests::counts_allocations()) GTEST_SKIP() << "skipped: allocations are not counted here";
  for (const char* name : {"llama_bf16", "mixtral_many_experts"}) {
    Loaded loaded(golden(name));
    ForwardPass& pass = *loaded.model.passes[0];
    kernels::Waker waker;
    const StepBatch batch = rows_of(kTokens, 0, 16), decode = rows_of(kTokens, 15, 1);
    last_logits(pass, batch);
    const uint64_t before = tests::allocations().count;
    ASSERT_GT(before, 0u);
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(pass.begin(i % 10 == 0 ? batch : decode, &waker).ok());
      ASSERT_TRUE(*pass.advance() == Progress::kDone);
    }
    EXPECT_EQ(tests::allocations().count - before, 0u) << name;
  }
}

// sgl-project/sglang pull 29659: the packed layout of a family's newer files.
TEST(LoadModel, LayoutsOfExpertsGiveEqualBits) {
  const tests::TinyTensors classic = tests::tiny_mixtral_tensors();
  tests::TinyTensors packed;
  for (const auto& [name, tensor] : classic) {
    if (name.find(".experts.") == std::string::npos) packed[name] = tensor;
  }
  for (const char* layer : {"0", "1"}) {
    const std::string prefix = std::string("model.layers.") + layer + ".block_sparse_moe.experts.";
    tests::TinyTensor gate_up{{tests::kTinyExperts, 8, 8}, ""},
        down{{tests::kTinyExperts, 8, 4}, ""};
    for (int e = 0; e < tests::kTinyExperts; ++e) {
      const std::string expert = prefix + std::to_string(e) + ".";
      gate_up.bytes +=
          classic.at(expert + "w1.weight").bytes + classic.at(expert + "w3.weight").bytes;
      down.bytes += classic.at(expert + "w2.weight").bytes;
    }
    packed[prefix + "gate_up_proj"] = gate_up;
    packed[prefix + "down_proj"] = down;
  }
  std::vector<std::vector<float>> logits;
  for (const tests::TinyTensors& tensors : {classic, packed}) {
    const tests::ModelFolder folder;
    folder.write_json("config.json", tests::tiny_mixtral_config());
    folder.write("model.safetensors", tests::safetensors_bytes(tensors));
    Loaded loaded(folder.path());
    logits.push_back(
        last_logits(*loaded.model.passes[0], rows_of({5, 9, 3, 14, 7, 11, 2, 8}, 0, 8)));
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(LoadModel, ReportsProgressAndRefusesWhatDoesNotFit) {
  const auto device = *kernels::Device::create(kernels::DeviceKind::kCpu, 1);
  LoadOptions options = small_options();
  LoadProgress last;
  int calls = 0;
  options.on_progress = [&](const LoadProgress& progress) {
    EXPECT_GE(progress.bytes, last.bytes);
    last = progress;
    ++calls;
  };
  ASSERT_TRUE(load_model(golden("mixtral_sharded_bf16"), *device, options).ok());
  EXPECT_EQ(last.tensors, last.tensors_total);
  EXPECT_EQ(last.bytes, last.bytes_total);
  EXPECT_EQ(calls, last.tensors_total);
  EXPECT_EQ(device->bytes_in_use(), 0u);

  const auto refusal = [&](const LoadOptions& bad) {
    return std::string(load_model(golden("llama_mha"), *device, bad).status().message());
  };
  LoadOptions bad = small_options();
  bad.max_context = 257;
  EXPECT_THAT(refusal(bad), HasSubstr("max_position_embeddings 256"));
  bad = small_options();
  bad.kv = {.block_size = 16, .num_blocks = 0, .memory_bytes = 100};
  EXPECT_THAT(refusal(bad), HasSubstr("a budget of 100 bytes holds 0 blocks"));
  bad = small_options();
  bad.limits.max_rows = 0;
  EXPECT_THAT(refusal(bad), HasSubstr("rows 0"));
  bad = small_options();
  bad.kv = {.block_size = 16, .num_blocks = 2'000'000'000};
  EXPECT_EQ(load_model(golden("llama_mha"), *device, bad).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace brigade::runtime
