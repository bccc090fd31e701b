#include <cmath>
#include <vector>

#include "kernels/core/half.h"
#include "kernels/reference/reference.h"

namespace brigade::kernels::reference {

double read_element(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kBF16: return bf16_to_f32(static_cast<const uint16_t*>(data)[index]);
    case DType::kF16: return f16_to_f32(static_cast<const uint16_t*>(data)[index]);
    default: return static_cast<const float*>(data)[index];
  }
}

void embedding(const EmbeddingArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t id = args.ids[row];
    const bool known = id >= 0 && id < args.vocab;
    for (int64_t i = 0; i < args.hidden; ++i) {
      const double value =
          known ? read_element(args.table, args.table_dtype, id * args.hidden + i) : 0.0;
      args.out[row * args.hidden + i] = static_cast<float>(value);
    }
  }
}

void rms_norm(const RmsNormArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    double squares = 0;
    for (int i = 0; i < args.hidden; ++i) squares += double{x[i]} * x[i];
    const double norm = std::sqrt(squares / args.hidden + args.eps);
    for (int i = 0; i < args.hidden; ++i) {
      args.out[row * args.out_stride + i] = static_cast<float>(x[i] / norm * args.weight[i]);
    }
  }
}

void gather_rows(const GatherRowsArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t i = 0; i < args.width; ++i) {
      args.out[row * args.width + i] = args.x[int64_t{args.index[row]} * args.width + i];
    }
  }
}

void combine(const CombineArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t i = 0; i < args.hidden; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < args.top_k; ++k) {
        const int64_t slot = row * args.top_k + k;
        const double gate = args.gates == nullptr ? 1.0 : args.gates[slot];
        sum += gate * read_element(args.answers, args.answer_dtype, slot * args.hidden + i);
      }
      float& residual = args.residual[row * args.hidden + i];
      residual = static_cast<float>(residual + sum);
    }
  }
  if (args.norm_weight == nullptr) return;
  rms_norm({.x = args.residual,
            .weight = args.norm_weight,
            .out = args.normed,
            .x_stride = args.hidden,
            .out_stride = args.hidden,
            .rows = args.rows,
            .hidden = args.hidden,
            .eps = args.norm_eps});
}

}  // namespace brigade::kernels::reference
