// The numerics probe's dense pieces: scalar maths, row operations, matrix products.
#include "absl/strings/str_cat.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/math.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/probe_bench.h"

namespace brigade::kernels {
namespace {

// exp over its whole range in quarters and odd fractions, then log, sin and cos of large and small.
std::vector<double> math_values() {
  std::vector<double> values;
  for (int i = -360; i <= 360; i += 3) {
    values.push_back(exp_f32(static_cast<float>(i) * 0.2421875f));
    values.push_back(exp_f64(i * 0.2421875));
    values.push_back(log_f64((i + 361) * 0.0390625));
    values.push_back(sin_f64(i * 1.62109375));
    values.push_back(cos_f64(i * 1.62109375));
  }
  for (int power = 8; power <= 30; ++power) {
    values.push_back(sin_f64(static_cast<double>((1 << power) - 3)));
    values.push_back(cos_f64(static_cast<double>((1 << power) - 5)));
  }
  return values;
}

absl::Status probe_product(ProbeBench& bench, DType dtype, int outputs, int rows) {
  constexpr int kInner = 301;  // not a whole block of k
  const WeightFormat format = weight_format(dtype, weight_layout(bench.device()));
  const std::vector<uint8_t> weights = bench.numbers().values(dtype, size_t(outputs) * kInner);
  std::vector<uint8_t> packed(packed_bytes(format, outputs, kInner));
  pack_matrix(format, weights.data(), outputs, kInner, packed.data());
  ASSIGN_OR_RETURN(const Buffer w, bench.upload(packed));
  ASSIGN_OR_RETURN(const Buffer x, bench.random(DType::kF32, size_t(rows) * kInner));
  ASSIGN_OR_RETURN(const Buffer bias, bench.random(DType::kF32, size_t(outputs)));
  ASSIGN_OR_RETURN(const Buffer y, bench.random(DType::kF32, size_t(rows) * outputs));
  RETURN_IF_ERROR(matmul(bench.stream(), {.x = x.as<float>(),
                                          .weights = {w.data(), format, outputs, kInner},
                                          .bias = bias.as<float>(),
                                          .y = y.as<float>(),
                                          .x_stride = kInner,
                                          .y_stride = outputs,
                                          .rows = rows,
                                          .accumulate = rows > 1}));
  return bench.keep(absl::StrCat("matmul ", dtype_name(dtype), " rows ", rows), y);
}

absl::Status probe_rms_norm(ProbeBench& bench, int hidden) {
  constexpr int kRows = 3;
  ASSIGN_OR_RETURN(const Buffer x, bench.random(DType::kF32, size_t(kRows) * hidden));
  ASSIGN_OR_RETURN(const Buffer weight, bench.random(DType::kF32, hidden));
  ASSIGN_OR_RETURN(const Buffer out, bench.allocate(x.bytes()));
  RETURN_IF_ERROR(rms_norm(bench.stream(), {.x = x.as<float>(),
                                            .weight = weight.as<float>(),
                                            .out = out.as<float>(),
                                            .x_stride = hidden,
                                            .out_stride = hidden,
                                            .rows = kRows,
                                            .hidden = hidden,
                                            .eps = 0x1p-17f}));
  return bench.keep(absl::StrCat("rms_norm ", hidden), out);
}

absl::Status probe_combine(ProbeBench& bench, DType answer_dtype) {
  constexpr int kRows = 5, kTopK = 3, kHidden = 53;
  ASSIGN_OR_RETURN(const Buffer answers, bench.random(answer_dtype, kRows * kTopK * kHidden));
  ASSIGN_OR_RETURN(const Buffer gates, bench.random(DType::kF32, kRows * kTopK));
  ASSIGN_OR_RETURN(const Buffer residual, bench.random(DType::kF32, kRows * kHidden));
  RETURN_IF_ERROR(combine(bench.stream(), {.answers = answers.data(),
                                           .answer_dtype = answer_dtype,
                                           .gates = gates.as<float>(),
                                           .residual = residual.as<float>(),
                                           .rows = kRows,
                                           .top_k = kTopK,
                                           .hidden = kHidden}));
  return bench.keep(absl::StrCat("combine ", dtype_name(answer_dtype)), residual);
}

absl::Status probe_embedding(ProbeBench& bench, DType dtype) {
  constexpr int kVocab = 7, kHidden = 45;
  const std::vector<int32_t> ids = {6, 0, 3};
  ASSIGN_OR_RETURN(const Buffer table, bench.random(dtype, kVocab * kHidden));
  ASSIGN_OR_RETURN(const Buffer at, bench.upload(ids));
  ASSIGN_OR_RETURN(const Buffer out, bench.allocate(ids.size() * kHidden * sizeof(float)));
  RETURN_IF_ERROR(embedding(bench.stream(), {.ids = at.as<int32_t>(),
                                             .table = table.data(),
                                             .table_dtype = dtype,
                                             .out = out.as<float>(),
                                             .rows = static_cast<int>(ids.size()),
                                             .hidden = kHidden,
                                             .vocab = kVocab}));
  return bench.keep(absl::StrCat("embedding ", dtype_name(dtype)), out);
}

}  // namespace

absl::Status probe_math(ProbeBench& bench) {
  const std::vector<double> values = math_values();
  bench.keep("exp, log, sin, cos", values.data(), values.size() * sizeof(double));
  return absl::OkStatus();
}

absl::Status probe_row_ops(ProbeBench& bench) {
  for (const int hidden : {77, 512}) RETURN_IF_ERROR(probe_rms_norm(bench, hidden));
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    RETURN_IF_ERROR(probe_combine(bench, dtype));
    RETURN_IF_ERROR(probe_embedding(bench, dtype));
  }
  return absl::OkStatus();
}

// Every row-count path of the kernels, of the CPU's and of a GPU's. Fast maths also has the
// library, which narrow matrices never meet.
absl::Status probe_matmul(ProbeBench& bench) {
  constexpr int kOutputs = 37, kWideOutputs = 300;  // not whole panels
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int rows : {1, 2, 5, 13, 40}) {
      RETURN_IF_ERROR(probe_product(bench, dtype, kOutputs, rows));
    }
    if (!bench.device().keeps_bits()) {
      RETURN_IF_ERROR(probe_product(bench, dtype, kWideOutputs, 20));
    }
  }
  return absl::OkStatus();
}

}  // namespace brigade::kernels
