// Counts how often each row-count path of a kernel ran. Kernels treat 1, 2, few and many rows
// differently inside; a test that claims equal bits over all of them reads here that it used them
// all. Relaxed atomics of the process; any thread.
#pragma once

#include <cstdint>

namespace brigade::kernels {

enum class CountedKernel : uint8_t { kMatmul, kExpertFfn, kPagedAttention };
inline constexpr int kCountedKernels = 3;

// Rows of one call (matmul, attention) or of one expert's group (expert_ffn).
enum class RowPath : uint8_t { kOne, kTwo, kFew, kMany };  // few: 3 to 8
inline constexpr int kRowPaths = 4;

constexpr RowPath row_path(int64_t rows) {
  return rows <= 1   ? RowPath::kOne
         : rows == 2 ? RowPath::kTwo
         : rows <= 8 ? RowPath::kFew
                     : RowPath::kMany;
}

const char* counted_kernel_name(CountedKernel kernel);
const char* row_path_name(RowPath path);  // "1", "2", "3-8", "9+"

void count_rows(CountedKernel kernel, int64_t rows);  // rows <= 0 counts nothing
uint64_t path_count(CountedKernel kernel, RowPath path);
void reset_path_counts();  // tests only

}  // namespace brigade::kernels
