#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/row_pieces.h"

namespace brigade::kernels {
namespace {

int32_t argmax(const float* logits, int vocab) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float best = kLowest;
  int32_t id = kNoToken;
  for (int i = 0; i < vocab; ++i) {
    if (std::isnan(logits[i]) || logits[i] == -kLowest) return kNoToken;
    if (logits[i] > best) {
      best = logits[i];
      id = i;
    }
  }
  return id;
}

}  // namespace

void cpu::argmax_rows(const ArgmaxRowsArgs& args, ThreadPool& threads) {
  for_row_pieces(threads, args.rows, args.vocab, [&](int first, int last) {
    for (int64_t row = first; row < last; ++row) {
      args.ids[row] = argmax(args.logits + row * args.vocab, args.vocab);
    }
  });
}

}  // namespace brigade::kernels
