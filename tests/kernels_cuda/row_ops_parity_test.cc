// Embedding, norm, gather, combine and rope on CUDA against the CPU: equal bits.
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"
#include "tests/kernels_cuda/parity.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using tests::encode;
using tests::expect_parity;
using tests::random_floats;
using tests::Tensors;

constexpr int kWidths[] = {1, 7, 16, 24, 100, 1024, 1028, 2500};
constexpr DType kDtypes[] = {DType::kF32, DType::kBF16, DType::kF16};

class RowOpsParity : public ::testing::Test {
 protected:
  std::mt19937_64 random_{tests::test_seed()};

  std::vector<int32_t> random_ids(size_t count, int bound) {
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % bound);
    return ids;
  }
};

TEST_F(RowOpsParity, Embedding) {
  constexpr int kVocab = 11;
  for (const DType dtype : kDtypes) {
    for (const int hidden : kWidths) {
      for (const int rows : {1, 65}) {
        SCOPED_TRACE(::testing::Message()
                     << dtype_name(dtype) << " [" << rows << ", " << hidden << "]");
        const auto table = encode(random_floats(random_, size_t(kVocab) * hidden), dtype);
        auto ids = random_ids(rows, kVocab);
        if (rows > 2) ids[1] = -1, ids[2] = kVocab;
        expect_parity(embedding, [&](Tensors& t) {
          return EmbeddingArgs{.ids = t.in(ids),
                               .table = t.in(table),
                               .table_dtype = dtype,
                               .out = t.out<float>(size_t(rows) * hidden),
                               .rows = rows,
                               .hidden = hidden,
                               .vocab = kVocab};
        });
      }
    }
  }
}

// Every f16 there is: zeros, subnormals, infinities, NaN.
TEST_F(RowOpsParity, EmbeddingWidensEveryNumberOf16Bits) {
  constexpr int kVocab = 64, kHidden = 1024;
  std::vector<uint16_t> numbers(kVocab * kHidden);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint16_t>(i);
  std::vector<int32_t> ids(kVocab);
  for (int i = 0; i < kVocab; ++i) ids[i] = i;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    expect_parity(embedding, [&](Tensors& t) {
      return EmbeddingArgs{.ids = t.in(ids),
                           .table = t.in(numbers),
                           .table_dtype = dtype,
                           .out = t.out<float>(numbers.size()),
                           .rows = kVocab,
                           .hidden = kHidden,
                           .vocab = kVocab};
    });
  }
}

TEST_F(RowOpsParity, RmsNorm) {
  for (const int hidden : kWidths) {
    for (const int rows : {1, 65}) {
      for (const int padding : {0, 5}) {
        SCOPED_TRACE(::testing::Message()
                     << "[" << rows << ", " << hidden << " + " << padding << "]");
        const int64_t stride = hidden + padding;
        const auto x = random_floats(random_, rows * stride, 3);
        const auto weight = random_floats(random_, hidden);
        expect_parity(rms_norm, [&](Tensors& t) {
          return RmsNormArgs{.x = t.in(x),
                             .weight = t.in(weight),
                             .out = t.out<float>(rows * stride),
                             .x_stride = stride,
                             .out_stride = stride,
                             .rows = rows,
                             .hidden = hidden,
                             .eps = 1e-5f};
        });
      }
    }
  }
}

TEST_F(RowOpsParity, RmsNormInPlace) {
  constexpr int kRows = 3, kHidden = 2052;
  const auto x = random_floats(random_, size_t(kRows) * kHidden, 3);
  const auto weight = random_floats(random_, kHidden);
  expect_parity(rms_norm, [&](Tensors& t) {
    float* both = t.inout(x);
    return RmsNormArgs{.x = both,
                       .weight = t.in(weight),
                       .out = both,
                       .x_stride = kHidden,
                       .out_stride = kHidden,
                       .rows = kRows,
                       .hidden = kHidden,
                       .eps = 1e-6f};
  });
}

TEST_F(RowOpsParity, GatherRows) {
  for (const int width : kWidths) {
    for (const int rows : {1, 65}) {
      SCOPED_TRACE(::testing::Message() << "[" << rows << ", " << width << "]");
      const auto x = random_floats(random_, size_t(9) * width);
      const auto index = random_ids(rows, 9);
      expect_parity(gather_rows, [&](Tensors& t) {
        return GatherRowsArgs{.x = t.in(x),
                              .index = t.in(index),
                              .out = t.out<float>(size_t(rows) * width),
                              .rows = rows,
                              .width = width};
      });
    }
  }
}

struct CombineCase {
  int rows, hidden, top_k;
  DType dtype;
  bool gated, norm;
};

void check_combine(const CombineCase& c, std::mt19937_64& random) {
  SCOPED_TRACE(::testing::Message()
               << dtype_name(c.dtype) << " [" << c.rows << " x " << c.top_k << ", " << c.hidden
               << "]" << (c.gated ? " gated" : "") << (c.norm ? " with norm" : ""));
  const auto answers =
      encode(random_floats(random, size_t(c.rows) * c.top_k * c.hidden, 2), c.dtype);
  auto gates = random_floats(random, size_t(c.rows) * c.top_k);
  gates[0] = 0;
  if (c.rows > 3) gates[size_t(c.top_k) * 3] = std::numeric_limits<float>::quiet_NaN();
  const auto residual = random_floats(random, size_t(c.rows) * c.hidden, 2);
  const auto weight = random_floats(random, c.hidden);
  expect_parity(combine, [&](Tensors& t) {
    CombineArgs args{.answers = t.in(answers),
                     .answer_dtype = c.dtype,
                     .gates = c.gated ? t.in(gates) : nullptr,
                     .residual = t.inout(residual),
                     .rows = c.rows,
                     .top_k = c.top_k,
                     .hidden = c.hidden};
    if (c.norm) {
      args.norm_weight = t.in(weight);
      args.normed = t.out<float>(residual.size());
      args.norm_eps = 1e-5f;
    }
    return args;
  });
}

TEST_F(RowOpsParity, Combine) {
  for (const bool norm : {false, true}) {
    for (const DType dtype : kDtypes) {
      for (const int hidden : kWidths) check_combine({2, hidden, 3, dtype, true, norm}, random_);
      check_combine({65, 72, 8, dtype, true, norm}, random_);
      check_combine({65, 72, 1, dtype, false, norm}, random_);
    }
  }
}

struct RopeCase {
  int rows, heads, kv_heads, head_dim, rotary_dim;
  RopePairing pairing;
  DType dtype;
};

void check_rope(const RopeCase& c, std::mt19937_64& random) {
  SCOPED_TRACE(::testing::Message()
               << dtype_name(c.dtype) << " rows " << c.rows << " heads " << c.heads << "/"
               << c.kv_heads << " of " << c.head_dim << ", rotary " << c.rotary_dim);
  constexpr int kPositions = 40, kBlocks = 12, kBlockSize = 7;
  const int64_t q_width = int64_t{c.heads} * c.head_dim,
                kv_width = int64_t{c.kv_heads} * c.head_dim;
  const int64_t stride = q_width + 2 * kv_width + 3;
  const auto qkv = random_floats(random, c.rows * stride);
  const auto cos = random_floats(random, size_t(kPositions) * (c.rotary_dim / 2));
  const auto sin = random_floats(random, size_t(kPositions) * (c.rotary_dim / 2));
  std::vector<int32_t> positions(c.rows);
  for (int32_t& position : positions) position = static_cast<int32_t>(random() % kPositions);
  std::vector<int64_t> slots(kBlocks * kBlockSize);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  std::shuffle(slots.begin(), slots.end(), random);
  slots.resize(c.rows);
  if (c.rows > 4) slots[4] = -1;
  KvLayerView cache{.dtype = c.dtype,
                    .num_blocks = kBlocks,
                    .block_size = kBlockSize,
                    .kv_heads = c.kv_heads,
                    .head_dim = c.head_dim};
  cache.block_stride_bytes = static_cast<int64_t>(2 * cache.layer_bytes());  // two layers
  expect_parity(rope_kv_write, [&](Tensors& t) {
    RopeKvWriteArgs args{.positions = t.in(positions),
                         .slots = t.in(slots),
                         .cos_table = t.in(cos),
                         .sin_table = t.in(sin),
                         .cache = cache,
                         .q_stride = stride,
                         .k_stride = stride,
                         .v_stride = stride,
                         .rows = c.rows,
                         .heads = c.heads,
                         .rotary_dim = c.rotary_dim,
                         .max_positions = kPositions,
                         .pairing = c.pairing};
    args.q = t.inout(qkv);
    args.k = args.q + q_width;
    args.v = args.k + kv_width;
    args.cache.data =
        t.out(c.dtype, size_t(kBlocks) * cache.block_stride_bytes / dtype_bytes(c.dtype));
    return args;
  });
}

TEST_F(RowOpsParity, RopeAndKvWrite) {
  for (const RopePairing pairing : {RopePairing::kSplitHalves, RopePairing::kInterleaved}) {
    for (const DType dtype : kDtypes) {
      check_rope({1, 4, 1, 64, 64, pairing, dtype}, random_);
      check_rope({65, 3, 3, 72, 36, pairing, dtype}, random_);
      check_rope({2, 8, 2, 128, 128, pairing, dtype}, random_);
      check_rope({2, 5, 1, 256, 130, pairing, dtype}, random_);
      check_rope({2, 1, 1, 20, 0, pairing, dtype}, random_);
    }
  }
}

}  // namespace
}  // namespace brigade::kernels
