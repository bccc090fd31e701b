#include <cstring>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/row_pieces.h"

namespace brigade::kernels {

void cpu::gather_rows(const GatherRowsArgs& args, ThreadPool& threads) {
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(args.width);
  for_row_pieces(threads, args.rows, args.width, [&](int first, int last) {
    for (int64_t row = first; row < last; ++row) {
      std::memcpy(args.out + row * args.width,
                  args.x + static_cast<int64_t>(args.index[row]) * args.width, row_bytes);
    }
  });
}

}  // namespace brigade::kernels
