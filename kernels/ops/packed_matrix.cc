#include "kernels/ops/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/check.h"

namespace brigade::kernels {
namespace {

// k that are gathered from the 16 rows of a panel before moving on: two cache lines of each row.
constexpr int64_t kPackBlock = 64;

// Element `k` of the source row of output `n` inside a panel, at its place in the panel.
template <typename T>
size_t panel_index(WeightFormat format, int64_t k, int n) {
  if (format == WeightFormat::kBF16PairPanels16) return (k / 2 * kPanelOutputs + n) * 2 + k % 2;
  return k * kPanelOutputs + n;
}

// Rows [row, row + 16) of `source`, those past `outputs` as zeros, into one panel.
template <typename T>
void pack_panel(WeightFormat format, const uint8_t* source, int64_t row, int64_t outputs, int64_t k,
                T* panel) {
  const int real = static_cast<int>(std::min<int64_t>(kPanelOutputs, outputs - row));
  if (real < kPanelOutputs || k % 2 != 0) std::memset(panel, 0, panel_bytes(format, k));
  for (int64_t k0 = 0; k0 < k; k0 += kPackBlock) {
    const int64_t count = std::min(kPackBlock, k - k0);
    for (int n = 0; n < real; ++n) {
      T values[kPackBlock];
      std::memcpy(values, source + ((row + n) * k + k0) * sizeof(T), count * sizeof(T));
      for (int64_t i = 0; i < count; ++i) panel[panel_index<T>(format, k0 + i, n)] = values[i];
    }
  }
}

// Panel i of the matrix goes to place i * step of `to`.
template <typename T>
void pack_panels(WeightFormat format, const void* source, int64_t outputs, int64_t k, int step,
                 uint8_t* to) {
  const size_t bytes = panel_bytes(format, k) * step;
  for (int64_t row = 0; row < outputs; row += kPanelOutputs, to += bytes) {
    pack_panel(format, static_cast<const uint8_t*>(source), row, outputs, k,
               reinterpret_cast<T*>(to));
  }
}

// Rows of `source`, each followed by zeros up to its padded length.
void pack_rows(WeightFormat format, const void* source, int64_t outputs, int64_t k, uint8_t* to) {
  const size_t element = dtype_bytes(weight_dtype(format));
  const size_t bytes = static_cast<size_t>(k) * element;
  const size_t stride = static_cast<size_t>(row_elements(format, k)) * element;
  const auto* from = static_cast<const uint8_t*>(source);
  for (int64_t row = 0; row < outputs; ++row, from += bytes, to += stride) {
    std::memcpy(to, from, bytes);
    std::memset(to + bytes, 0, stride - bytes);
  }
}

void pack_with_step(WeightFormat format, const void* source, int64_t outputs, int64_t k, int step,
                    uint8_t* to) {
  if (format == WeightFormat::kF32Panels16) {
    pack_panels<uint32_t>(format, source, outputs, k, step, to);
  } else {
    pack_panels<uint16_t>(format, source, outputs, k, step, to);
  }
}

}  // namespace

WeightFormat weight_format(DType dtype, WeightLayout layout) {
  const bool rows = layout == WeightLayout::kRows;
  switch (dtype) {
    case DType::kF32:
      return rows ? WeightFormat::kF32Rows : WeightFormat::kF32Panels16;
    case DType::kBF16:
      return rows ? WeightFormat::kBF16Rows : WeightFormat::kBF16PairPanels16;
    case DType::kF16:
      return rows ? WeightFormat::kF16Rows : WeightFormat::kF16Panels16;
    case DType::kI32:
      break;
  }
  check_failed("weights are f32, bf16 or f16", __FILE__, __LINE__);
}

const char* weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32Panels16:
      return "f32_panels16";
    case WeightFormat::kBF16PairPanels16:
      return "bf16_pairs_panels16";
    case WeightFormat::kF16Panels16:
      return "f16_panels16";
    case WeightFormat::kF32Rows:
      return "f32_rows";
    case WeightFormat::kBF16Rows:
      return "bf16_rows";
    case WeightFormat::kF16Rows:
      return "f16_rows";
  }
  return "?";
}

size_t panel_bytes(WeightFormat format, int64_t k) {
  const size_t rows = static_cast<size_t>(k);
  if (format == WeightFormat::kF32Panels16) return rows * kPanelOutputs * 4;
  return (rows + 1) / 2 * 2 * kPanelOutputs * 2;
}

size_t packed_bytes(WeightFormat format, int64_t outputs, int64_t k) {
  if (weight_layout(format) == WeightLayout::kRows) {
    return static_cast<size_t>(outputs * row_elements(format, k)) *
           dtype_bytes(weight_dtype(format));
  }
  return static_cast<size_t>(padded_outputs(outputs) / kPanelOutputs) * panel_bytes(format, k);
}

void pack_matrix(WeightFormat format, const void* source, int64_t outputs, int64_t k, void* to) {
  if (weight_layout(format) == WeightLayout::kRows) {
    pack_rows(format, source, outputs, k, static_cast<uint8_t*>(to));
    return;
  }
  pack_with_step(format, source, outputs, k, 1, static_cast<uint8_t*>(to));
}

void pack_gate_up(WeightFormat format, const void* gate, const void* up, int64_t ffn, int64_t k,
                  void* to) {
  if (weight_layout(format) == WeightLayout::kRows) {
    pack_rows(format, gate, ffn, k, static_cast<uint8_t*>(to));
    pack_rows(format, up, ffn, k, static_cast<uint8_t*>(to) + packed_bytes(format, ffn, k));
    return;
  }
  uint8_t* panels = static_cast<uint8_t*>(to);
  pack_with_step(format, gate, ffn, k, 2, panels);
  pack_with_step(format, up, ffn, k, 2, panels + panel_bytes(format, k));
}

}  // namespace brigade::kernels
