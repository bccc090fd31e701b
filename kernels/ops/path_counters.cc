#include "kernels/ops/path_counters.h"

#include <atomic>

namespace brigade::kernels {
namespace {

std::atomic<uint64_t> g_counts[kCountedKernels][kRowPaths];

}  // namespace

const char* counted_kernel_name(CountedKernel kernel) {
  switch (kernel) {
    case CountedKernel::kMatmul:
      return "matmul";
    case CountedKernel::kExpertFfn:
      return "expert_ffn";
    case CountedKernel::kPagedAttention:
      return "paged_attention";
  }
  return "?";
}

const char* row_path_name(RowPath path) {
  switch (path) {
    case RowPath::kOne:
      return "1";
    case RowPath::kTwo:
      return "2";
    case RowPath::kFew:
      return "3-8";
    case RowPath::kMany:
      return "9+";
  }
  return "?";
}

void count_rows(CountedKernel kernel, int64_t rows) {
  if (rows <= 0) return;
  g_counts[static_cast<int>(kernel)][static_cast<int>(row_path(rows))].fetch_add(
      1, std::memory_order_relaxed);
}

uint64_t path_count(CountedKernel kernel, RowPath path) {
  return g_counts[static_cast<int>(kernel)][static_cast<int>(path)].load(std::memory_order_relaxed);
}

void reset_path_counts() {
  for (auto& kernel : g_counts) {
    for (auto& count : kernel) count.store(0, std::memory_order_relaxed);
  }
}

}  // namespace brigade::kernels
