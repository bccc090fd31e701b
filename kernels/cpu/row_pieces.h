// How ops that treat rows one by one use the threads. Private to kernels/cpu.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/core/thread_pool.h"

namespace brigade::kernels::cpu {

// Elements in one piece of work: some 20 us, well above what waking a sleeping thread costs. Less
// than two pieces run on the caller without waking anybody.
inline constexpr int64_t kPieceElements = 65536;

// Calls run(first, last) over [0, rows) in pieces.
template <typename Run>
void for_row_pieces(ThreadPool& threads, int rows, int64_t elements_per_row, Run run) {
  const int64_t per_row = std::max<int64_t>(1, elements_per_row);
  const int piece = static_cast<int>(std::clamp<int64_t>(kPieceElements / per_row, 1, rows));
  threads.parallel_for((rows + piece - 1) / piece, [&](int index, int) {
    run(index * piece, std::min(rows, (index + 1) * piece));
  });
}

}  // namespace brigade::kernels::cpu
