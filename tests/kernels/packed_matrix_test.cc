// Packed weights: every element is where the layout says, padding is zero, nothing is read or
// written outside, unaligned sources work.
#include "kernels/ops/packed_matrix.h"

#include <gtest/gtest.h>

#include "kernels/ops/packed_parts.h"
#include "tests/kernels/gemm_support.h"

namespace brigade::kernels::tests {
namespace {

// The layout as the header describes it, in elements.
size_t place(DType dtype, int64_t k, int n) {
  return dtype == DType::kBF16 ? (k / 2 * 16 + n) * 2 + k % 2 : k * 16 + n;
}

template <typename T>
void expect_layout(DType dtype, int64_t outputs, int64_t k) {
  const WeightFormat format = weight_format(dtype);
  std::vector<uint8_t> source(outputs * k * sizeof(T) + 1);
  std::vector<T> numbers(outputs * k);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<T>(i + 1);
  std::memcpy(source.data() + 1, numbers.data(), numbers.size() * sizeof(T));
  const size_t bytes = packed_bytes(format, outputs, k);
  ASSERT_EQ(bytes % 64, 0u);
  std::vector<T> packed(bytes / sizeof(T) + 1, static_cast<T>(0xabcdabcd));
  pack_matrix(format, source.data() + 1, outputs, k, packed.data());
  EXPECT_EQ(packed.back(), static_cast<T>(0xabcdabcd));
  packed.pop_back();
  const size_t panel = panel_bytes(format, k) / sizeof(T);
  std::vector<T> want(packed.size(), 0);
  for (int64_t n = 0; n < outputs; ++n) {
    for (int64_t i = 0; i < k; ++i) {
      want[n / 16 * panel + place(dtype, i, static_cast<int>(n % 16))] = numbers[n * k + i];
    }
  }
  EXPECT_EQ(packed, want) << dtype_name(dtype) << " " << outputs << " x " << k;
}

TEST(PackedMatrix, EveryElementIsInItsPlace) {
  for (const int64_t outputs : {1, 5, 16, 17, 48}) {
    for (const int64_t k : {1, 2, 7, 64, 65, 200}) {
      expect_layout<uint32_t>(DType::kF32, outputs, k);
      expect_layout<uint16_t>(DType::kBF16, outputs, k);
      expect_layout<uint16_t>(DType::kF16, outputs, k);
    }
  }
}

// Rows: each padded with zeros to 16 bytes, all of gate before all of up.
TEST(PackedMatrix, RowsFollowEachOther) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t k : {1, 8, 13}) {
      constexpr int64_t kOutputs = 5;
      const WeightFormat format = weight_format(dtype, WeightLayout::kRows);
      EXPECT_EQ(weight_dtype(format), dtype);
      EXPECT_EQ(weight_layout(format), WeightLayout::kRows);
      EXPECT_EQ(gate_up_outputs(format, kOutputs), 2 * kOutputs);
      const size_t row = k * dtype_bytes(dtype), stride = (row + 15) / 16 * 16;
      const TestMatrix gate(dtype, kOutputs, k, 1), up(dtype, kOutputs, k, 2);
      ASSERT_EQ(packed_bytes(format, kOutputs, k), kOutputs * stride);
      std::vector<uint8_t> want(2 * kOutputs * stride, 0);
      for (int64_t r = 0; r < kOutputs; ++r) {
        std::memcpy(&want[r * stride], static_cast<const uint8_t*>(gate.bytes()) + r * row, row);
        std::memcpy(&want[(kOutputs + r) * stride],
                    static_cast<const uint8_t*>(up.bytes()) + r * row, row);
      }
      std::vector<uint8_t> both(want.size() + 1, 0xAB);
      pack_gate_up(format, gate.bytes(), up.bytes(), kOutputs, k, both.data());
      EXPECT_EQ(both.back(), 0xAB);
      both.pop_back();
      EXPECT_EQ(both, want);
      std::vector<uint8_t> one(kOutputs * stride, 0xAB);
      pack_matrix(format, up.bytes(), kOutputs, k, one.data());
      EXPECT_EQ(one, std::vector<uint8_t>(want.begin() + kOutputs * stride, want.end()));
    }
  }
}

TEST(PackedMatrix, GateAndUpPanelsAlternate) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    constexpr int64_t kFfn = 37, kK = 19;
    const WeightFormat format = weight_format(dtype);
    const TestMatrix gate(dtype, kFfn, kK, 1), up(dtype, kFfn, kK, 2);
    const size_t one = packed_bytes(format, kFfn, kK), panel = panel_bytes(format, kK);
    std::vector<uint8_t> both(2 * one);
    pack_gate_up(format, gate.bytes(), up.bytes(), kFfn, kK, both.data());
    for (size_t p = 0; p < one / panel; ++p) {
      const auto* gate_panel = static_cast<const uint8_t*>(gate.packed().data) + p * panel;
      const auto* up_panel = static_cast<const uint8_t*>(up.packed().data) + p * panel;
      EXPECT_EQ(std::memcmp(&both[2 * p * panel], gate_panel, panel), 0);
      EXPECT_EQ(std::memcmp(&both[(2 * p + 1) * panel], up_panel, panel), 0);
    }
  }
}

// Taken in pieces of any size that begin at multiples of 64 bytes, asking for the rows of the piece only.
TEST(PackedMatrix, PiecesAreTheWhole) {
  static constexpr int64_t kOutputs = 37;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const WeightLayout layout : {WeightLayout::kPanels, WeightLayout::kRows}) {
      for (const int64_t k : {1, 19, 200}) {
        const WeightFormat format = weight_format(dtype, layout);
        const TestMatrix gate(dtype, kOutputs, k, 1), up(dtype, kOutputs, k, 2);
        const auto rows_of = [&](const TestMatrix& matrix) {
          return [&matrix, k, dtype](int64_t first, int64_t count) -> const void* {
            EXPECT_GE(first, 0);
            EXPECT_LE(first + count, kOutputs);
            EXPECT_LE(count, kPanelOutputs);
            return static_cast<const uint8_t*>(matrix.bytes()) + first * k * dtype_bytes(dtype);
          };
        };
        std::vector<uint8_t> one(packed_bytes(format, kOutputs, k)), both(2 * one.size());
        pack_matrix(format, up.bytes(), kOutputs, k, one.data());
        pack_gate_up(format, gate.bytes(), up.bytes(), kOutputs, k, both.data());
        for (const size_t piece : {64, 192, 4096}) {
          std::vector<uint8_t> parts(both.size() + 1, 0xAB);
          const auto in_pieces = [&](size_t total, auto&& pack) {
            for (size_t first = 0; first < total; first += piece) {
              pack(first, std::min(piece, total - first), &parts[first]);
            }
            EXPECT_EQ(parts[total], 0xAB);
            return std::vector<uint8_t>(parts.begin(), parts.begin() + total);
          };
          EXPECT_EQ(in_pieces(one.size(),
                              [&](size_t first, size_t bytes, void* to) {
                                pack_matrix_part(format, rows_of(up), kOutputs, k, first, bytes, to);
                              }),
                    one)
              << weight_format_name(format) << " k " << k << " by " << piece;
          EXPECT_EQ(in_pieces(both.size(),
                              [&](size_t first, size_t bytes, void* to) {
                                pack_gate_up_part(format, rows_of(gate), rows_of(up), kOutputs, k,
                                                  first, bytes, to);
                              }),
                    both)
              << weight_format_name(format) << " k " << k << " by " << piece;
        }
      }
    }
  }
}

TEST(PackedMatrix, Sizes) {
  EXPECT_EQ(padded_outputs(1), 16);
  EXPECT_EQ(padded_outputs(16), 16);
  EXPECT_EQ(padded_outputs(17), 32);
  EXPECT_EQ(packed_bytes(WeightFormat::kF32Panels16, 17, 3), 2u * 3 * 64);
  EXPECT_EQ(packed_bytes(WeightFormat::kBF16PairPanels16, 17, 3), 2u * 4 * 32);
  EXPECT_EQ(packed_bytes(WeightFormat::kF16Panels16, 17, 4), 2u * 4 * 32);
}

}  // namespace
}  // namespace brigade::kernels::tests
