// Weights in the order in which the kernels read them. A panel holds 16 outputs and all of K, one
// sequential stream; the same bytes on every instruction set. Outputs are padded to a multiple of
// 16 with zero rows. Packing happens once, at load, on the host. Packed data starts 64-byte
// aligned.
//
//   f32    [K] x {16 f32}
//   bf16   [ceil(K/2)] x {16 u32}: word j = output j at k | the same output at k+1 << 16, so that a
//          shift or a mask widens it; an odd K ends with a zero that is never multiplied
//   f16    [K] x {16 f16}, and padding to an even K
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"

namespace brigade::kernels {

inline constexpr int kPanelOutputs = 16;

// Identifies layout and element type; part of a shard's checksum.
enum class WeightFormat : uint32_t { kF32Panels16 = 1, kBF16PairPanels16 = 2, kF16Panels16 = 3 };

WeightFormat weight_format(DType dtype);
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
size_t panel_bytes(WeightFormat format, int64_t k);
size_t packed_bytes(WeightFormat format, int64_t outputs, int64_t k);

// Packs rows of `source` (row-major [outputs, k], dtype of the format, possibly unaligned as in a
// mapped file) into host memory `to` of packed_bytes(). The value of every weight is unchanged.
void pack_matrix(WeightFormat format, const void* source, int64_t outputs, int64_t k, void* to);

// Gate and up projections of a SwiGLU, panels alternating (gate 0, up 0, gate 1, up 1, ...), so
// that the thread that made a column of both can multiply them. `ffn` outputs each; bytes: 2 *
// packed_bytes(format, ffn, k). As a PackedMatrix: outputs = 2 * padded_outputs(ffn).
void pack_gate_up(WeightFormat format, const void* gate, const void* up, int64_t ffn, int64_t k,
                  void* to);

}  // namespace brigade::kernels
