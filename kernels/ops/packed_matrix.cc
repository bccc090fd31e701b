#include "kernels/ops/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/ops/packed_parts.h"

namespace brigade::kernels {
namespace {

// k that are gathered from the 16 rows of a panel before moving on: two cache lines of each row.
constexpr int64_t kPackBlock = 64;

// A panel's bytes are in order of k; so many k lie in kPanelUnit bytes.
constexpr size_t kPanelUnit = 64;
int64_t unit_k(WeightFormat format) { return format == WeightFormat::kF32Panels16 ? 1 : 2; }

// Element `k` of the source row of output `n` inside a panel, at its place in the panel.
template <typename T>
size_t panel_index(WeightFormat format, int64_t k, int n) {
  if (format == WeightFormat::kBF16PairPanels16) return (k / 2 * kPanelOutputs + n) * 2 + k % 2;
  return k * kPanelOutputs + n;
}

// Bytes [first, first + bytes) of the panel of `real` rows; further rows and an odd end are zeros.
template <typename T>
void pack_panel(WeightFormat format, const uint8_t* rows, int real, int64_t k, size_t first,
                size_t bytes, T* to) {
  const int64_t begin = static_cast<int64_t>(first / kPanelUnit) * unit_k(format);
  const int64_t padded = begin + static_cast<int64_t>(bytes / kPanelUnit) * unit_k(format);
  const int64_t end = std::min(k, padded);
  if (real < kPanelOutputs || end < padded) std::memset(to, 0, bytes);
  for (int64_t k0 = begin; k0 < end; k0 += kPackBlock, to += kPackBlock * kPanelOutputs) {
    const int64_t count = std::min(kPackBlock, end - k0);
    for (int n = 0; n < real; ++n) {
      T values[kPackBlock];
      std::memcpy(values, rows + (n * k + k0) * sizeof(T), count * sizeof(T));
      for (int64_t i = 0; i < count; ++i) to[panel_index<T>(format, i, n)] = values[i];
    }
  }
}

// One matrix, or several of the same size with panels alternating.
struct Sources {
  const MatrixRows* rows;
  int count;
  int64_t outputs, k;  // each
};

// Panel p of the whole is panel p / count of matrix p % count.
template <typename T>
void pack_panels(WeightFormat format, const Sources& from, size_t first, size_t bytes,
                 uint8_t* to) {
  const size_t panel = panel_bytes(format, from.k);
  while (bytes > 0) {
    const size_t p = first / panel, at = first % panel, part = std::min(panel - at, bytes);
    const auto row = static_cast<int64_t>(p / from.count) * kPanelOutputs;
    const auto real = static_cast<int>(std::min<int64_t>(kPanelOutputs, from.outputs - row));
    const void* rows = from.rows[p % from.count](row, real);
    pack_panel(format, static_cast<const uint8_t*>(rows), real, from.k, at, part,
               reinterpret_cast<T*>(to));
    first += part;
    bytes -= part;
    to += part;
  }
}

// One matrix after the other; each row is followed by zeros up to its padded length.
void pack_rows(WeightFormat format, const Sources& from, size_t first, size_t bytes, uint8_t* to) {
  const size_t element = dtype_bytes(weight_dtype(format));
  const size_t row_bytes = static_cast<size_t>(from.k) * element;
  const size_t stride = static_cast<size_t>(row_elements(format, from.k)) * element;
  while (bytes > 0) {
    const auto row = static_cast<int64_t>(first / stride);
    const size_t at = first % stride, part = std::min(stride - at, bytes);
    const size_t real = at < row_bytes ? std::min(part, row_bytes - at) : 0;
    const void* source = from.rows[row / from.outputs](row % from.outputs, 1);
    std::memcpy(to, static_cast<const uint8_t*>(source) + at, real);
    std::memset(to + real, 0, part - real);
    first += part;
    bytes -= part;
    to += part;
  }
}

void pack(WeightFormat format, const Sources& from, size_t first, size_t bytes, void* to) {
  auto* const bytes_to = static_cast<uint8_t*>(to);
  if (weight_layout(format) == WeightLayout::kRows) {
    pack_rows(format, from, first, bytes, bytes_to);
    return;
  }
  CHECK(first % kPanelUnit == 0 && bytes % kPanelUnit == 0);
  if (format == WeightFormat::kF32Panels16) {
    pack_panels<uint32_t>(format, from, first, bytes, bytes_to);
  } else {
    pack_panels<uint16_t>(format, from, first, bytes, bytes_to);
  }
}

// Rows that all lie in memory.
auto rows_at(WeightFormat format, const void* source, int64_t k) {
  const size_t bytes = static_cast<size_t>(k) * dtype_bytes(weight_dtype(format));
  return [source, bytes](int64_t first, int64_t) -> const void* {
    return static_cast<const uint8_t*>(source) + static_cast<size_t>(first) * bytes;
  };
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

void pack_matrix_part(WeightFormat format, MatrixRows rows, int64_t outputs, int64_t k, size_t first,
                      size_t bytes, void* to) {
  pack(format, {&rows, 1, outputs, k}, first, bytes, to);
}

void pack_gate_up_part(WeightFormat format, MatrixRows gate, MatrixRows up, int64_t ffn, int64_t k,
                       size_t first, size_t bytes, void* to) {
  const MatrixRows both[] = {gate, up};
  pack(format, {both, 2, ffn, k}, first, bytes, to);
}

void pack_matrix(WeightFormat format, const void* source, int64_t outputs, int64_t k, void* to) {
  pack_matrix_part(format, rows_at(format, source, k), outputs, k, 0,
                   packed_bytes(format, outputs, k), to);
}

void pack_gate_up(WeightFormat format, const void* gate, const void* up, int64_t ffn, int64_t k,
                  void* to) {
  pack_gate_up_part(format, rows_at(format, gate, k), rows_at(format, up, k), ffn, k, 0,
                    2 * packed_bytes(format, ffn, k), to);
}

}  // namespace brigade::kernels
