// The grouped expert FFN of mode fast. Experts with many rows: their rows are rounded to the
// weights' dtype, gate and up of all of them are one grouped call of the library, SwiGLU, down is
// another, and the answers go to their rows. One expert alone, and a stream that records a graph,
// take plain calls. Experts with few rows, or with panels, take the streaming kernels.
#include <algorithm>

#include "kernels/core/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/expert_rows.h"
#include "kernels/cuda/fast_math.h"
#include "kernels/cuda/fast_rows.h"
#include "kernels/cuda/stream_cuda.h"

namespace brigade::kernels::cuda {
namespace {

// Scratch of a call, 64-byte aligned rows for i in [0, total): gate and up, of which the first half
// becomes their product; the rounded row of x, which makes room for the answer; then addresses.
struct Scratch {
  float* gate_up;
  int64_t gate_up_stride;  // in f32
  float* x;
  int64_t x_stride;
  const void** addresses;
};

int64_t gate_up_floats(int max_ffn) { return 2 * padded_outputs(max_ffn); }
int64_t x_floats(int hidden) { return padded_outputs(hidden); }
constexpr int kAddressLists = 6;

Scratch carve(const ExpertFfnArgs& args, int max_ffn) {
  Scratch scratch;
  scratch.gate_up = static_cast<float*>(args.scratch);
  scratch.gate_up_stride = gate_up_floats(max_ffn);
  scratch.x = scratch.gate_up + args.total * scratch.gate_up_stride;
  scratch.x_stride = x_floats(args.hidden);
  scratch.addresses = reinterpret_cast<const void**>(scratch.x + args.total * scratch.x_stride);
  return scratch;
}

bool for_library(const ExpertGroup& group) {
  return group.count >= kFirstBlasCount &&
         weight_layout(group.weights.gate_up.format) == WeightLayout::kRows;
}

// Experts of one dtype that share the library's calls.
class Batch {
 public:
  Batch(StreamImpl& stream, const ExpertFfnArgs& args, const Scratch& scratch, DType dtype)
      : stream_(stream),
        native_(static_cast<cudaStream_t>(stream.native())),
        args_(args),
        scratch_(scratch),
        dtype_(dtype) {}

  absl::Status add(const ExpertGroup& group) {
    groups_[count_] = &group;
    ranges_.range[count_++] = {group.first, group.count, group.weights.ffn};
    return count_ == kMaxBlasGroups ? run() : absl::OkStatus();
  }

  absl::Status run() {
    if (count_ == 0) return absl::OkStatus();
    RETURN_IF_ERROR(cuda_status(
        round_rows(native_, ranges_, count_, dtype_, args_.x, args_.hidden, args_.row_index,
                   scratch_.x, elements(scratch_.x_stride), args_.hidden),
        "expert_ffn: round_rows", count_, " experts"));
    RETURN_IF_ERROR(product(&ExpertWeights::gate_up, scratch_.x, scratch_.x_stride,
                            scratch_.gate_up, scratch_.gate_up_stride, 0));
    RETURN_IF_ERROR(cuda_status(swiglu_rows(native_, ranges_, count_, dtype_, scratch_.gate_up,
                                            elements(scratch_.gate_up_stride)),
                                "expert_ffn: swiglu_rows", count_, " experts"));
    RETURN_IF_ERROR(product(&ExpertWeights::down, scratch_.gate_up, scratch_.gate_up_stride,
                            scratch_.x, scratch_.x_stride, kAddressLists / 2));
    const int count = count_;
    count_ = 0;
    return cuda_status(
        answer_rows(native_, ranges_, count, dtype_, scratch_.x, elements(scratch_.x_stride),
                    args_.out_index, args_.out, args_.out_dtype, args_.hidden),
        "expert_ffn: answer_rows", count, " experts");
  }

 private:
  // A row's place is counted in f32; a row of 16-bit elements has twice as many.
  int64_t elements(int64_t floats) const { return floats * 4 / int64_t(dtype_bytes(dtype_)); }

  // y = x w^T of every expert. The addresses of a grouped call are in the lists from `list` on.
  absl::Status product(PackedMatrix ExpertWeights::*matrix, float* x, int64_t x_stride, float* y,
                       int64_t y_stride, int list) {
    Addresses addresses[kAddressLists / 2] = {};
    for (int g = 0; g < count_; ++g) {
      const PackedMatrix& weights = groups_[g]->weights.*matrix;
      const int64_t first = groups_[g]->first;
      addresses[0].at[g] = x + first * x_stride;
      addresses[1].at[g] = weights.data;
      addresses[2].at[g] = y + first * y_stride;
      shapes_[g] = {.rows = groups_[g]->count,
                    .outputs = static_cast<int>(weights.outputs),
                    .k = static_cast<int>(weights.k),
                    .x_stride = elements(x_stride),
                    .weight_stride = row_elements(weights.format, weights.k),
                    .y_stride = elements(y_stride)};
    }
    Blas& blas = stream_.fast_math()->blas();
    ASSIGN_OR_RETURN(const bool one_by_one, takes_plain_calls());
    for (int g = 0; one_by_one && g < count_; ++g) {
      RETURN_IF_ERROR(blas.product(dtype_, shapes_[g], addresses[0].at[g], addresses[1].at[g],
                                   dtype_, const_cast<void*>(addresses[2].at[g]), false));
    }
    if (one_by_one) return absl::OkStatus();
    const void** const lists = scratch_.addresses + list * kMaxBlasGroups;
    for (int i = 0; i < kAddressLists / 2; ++i) {
      RETURN_IF_ERROR(
          cuda_status(write_addresses(native_, addresses[i], count_, lists + i * kMaxBlasGroups),
                      "expert_ffn: write_addresses", count_));
    }
    return blas.products(dtype_, shapes_, count_, lists, lists + kMaxBlasGroups,
                         const_cast<void* const*>(lists + 2 * kMaxBlasGroups));
  }

  absl::StatusOr<bool> takes_plain_calls() const {
    cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
    RETURN_IF_ERROR(
        cuda_status(cudaStreamIsCapturing(native_, &recording), "cudaStreamIsCapturing"));
    return count_ == 1 || recording != cudaStreamCaptureStatusNone;
  }

  StreamImpl& stream_;
  const cudaStream_t native_;
  const ExpertFfnArgs& args_;
  const Scratch scratch_;
  const DType dtype_;
  RowRanges ranges_;
  const ExpertGroup* groups_[kMaxBlasGroups];
  BlasShape shapes_[kMaxBlasGroups];
  int count_ = 0;
};

}  // namespace

absl::Status fast_expert_ffn(CudaStream& stream, const ExpertFfnArgs& args) {
  const Scratch scratch = carve(args, max_ffn(args));
  const auto native = static_cast<cudaStream_t>(stream.native());
  RETURN_IF_ERROR(
      cuda_status(stream_experts(native, args, scratch.gate_up, scratch.gate_up_stride,
                                 [](const ExpertGroup& group) { return !for_library(group); }),
                  "expert_ffn", args.total, " rows"));
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Batch batch(static_cast<StreamImpl&>(stream), args, scratch, dtype);
    for (int g = 0; g < args.num_groups; ++g) {
      const ExpertGroup& group = args.groups[g];
      if (!for_library(group) || weight_dtype(group.weights.gate_up.format) != dtype) continue;
      RETURN_IF_ERROR(batch.add(group));
    }
    RETURN_IF_ERROR(batch.run());
  }
  return absl::OkStatus();
}

size_t fast_expert_ffn_scratch_bytes(int max_total, int hidden, int max_ffn) {
  return sizeof(float) * static_cast<size_t>(max_total) *
             static_cast<size_t>(gate_up_floats(max_ffn) + x_floats(hidden)) +
         sizeof(void*) * kAddressLists * kMaxBlasGroups;
}

}  // namespace brigade::kernels::cuda
