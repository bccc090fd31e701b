// Weights in the order in which the kernels read them. A panel holds 16 outputs and all of K, one
// sequential stream; the same bytes on every instruction set. Outputs are padded to a multiple of
// 16 with zero rows. Packing happens once, at load, on the host. Packed data starts 64-byte
// aligned.
//
//   f32    [K] x {16 f32}
//   bf16   [ceil(K/2)] x {16 u32}: word j = output j at k | the same output at k+1 << 16, so that a
//          shift or a mask widens it; an odd K ends with a zero that is never multiplied
//   f16    [K] x {16 f16}, and padding to an even K
//
// Devices that multiply with a library keep rows instead: row-major, each row padded with zeros to 16
// bytes, no padding of outputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"

namespace brigade::kernels {

class Device;

inline constexpr int kPanelOutputs = 16;

enum class WeightLayout : uint8_t { kPanels, kRows };
// What the device's matrix products read; one that asks for rows reads panels too.
WeightLayout weight_layout(const Device& device);

// Identifies layout and element type; part of a shard's checksum.
enum class WeightFormat : uint32_t {
  kF32Panels16 = 1,
  kBF16PairPanels16 = 2,
  kF16Panels16 = 3,
  kF32Rows = 4,
  kBF16Rows = 5,
  kF16Rows = 6
};

WeightFormat weight_format(DType dtype, WeightLayout layout = WeightLayout::kPanels);
constexpr WeightLayout weight_layout(WeightFormat format) {
  return format >= WeightFormat::kF32Rows ? WeightLayout::kRows : WeightLayout::kPanels;
}
constexpr DType weight_dtype(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32Panels16:
    case WeightFormat::kF32Rows:
      return DType::kF32;
    case WeightFormat::kBF16PairPanels16:
    case WeightFormat::kBF16Rows:
      return DType::kBF16;
    default:
      return DType::kF16;
  }
}
const char* weight_format_name(WeightFormat format);

// A matrix of `outputs` x `k` on some device. Does not own its bytes.
struct PackedMatrix {
  const void* data = nullptr;
  WeightFormat format = WeightFormat::kF32Panels16;
  int64_t outputs = 0;  // real outputs, before padding
  int64_t k = 0;
};

constexpr int64_t padded_outputs(int64_t outputs) {
  return (outputs + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs;
}
size_t panel_bytes(WeightFormat format, int64_t k);  // of a format of panels
// From row to row, of a format of rows.
constexpr int64_t row_elements(WeightFormat format, int64_t k) {
  const int64_t step = 16 / static_cast<int64_t>(dtype_bytes(weight_dtype(format)));
  return (k + step - 1) / step * step;
}
size_t packed_bytes(WeightFormat format, int64_t outputs, int64_t k);
// `outputs` of a PackedMatrix that pack_gate_up() made for `ffn` outputs each.
constexpr int64_t gate_up_outputs(WeightFormat format, int64_t ffn) {
  return 2 * (weight_layout(format) == WeightLayout::kRows ? ffn : padded_outputs(ffn));
}

// Packs rows of `source` (row-major [outputs, k], dtype of the format, possibly unaligned as in a
// mapped file) into host memory `to` of packed_bytes(). The value of every weight is unchanged.
void pack_matrix(WeightFormat format, const void* source, int64_t outputs, int64_t k, void* to);

// Gate and up projections of a SwiGLU. Panels alternate (gate 0, up 0, gate 1, up 1, ...), so that
// the thread that made a column of both can multiply them; of rows, all of gate come before all of
// up. `ffn` outputs each; bytes: 2 * packed_bytes(format, ffn, k).
void pack_gate_up(WeightFormat format, const void* gate, const void* up, int64_t ffn, int64_t k,
                  void* to);

}  // namespace brigade::kernels
