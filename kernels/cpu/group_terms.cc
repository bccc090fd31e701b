#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"

namespace brigade::kernels {

// A counting sort: a few thousand integers, not worth a second thread.
void cpu::group_terms(const GroupTermsArgs& args, ThreadPool&) {
  const auto grouped = [&](int32_t expert) { return expert >= 0 && expert < args.num_experts; };
  std::fill_n(args.counts, args.num_experts, 0);
  for (int term = 0; term < args.terms; ++term) {
    if (grouped(args.experts[term])) ++args.counts[args.experts[term]];
  }
  int32_t next[kMaxExperts];
  args.offsets[0] = 0;
  for (int expert = 0; expert < args.num_experts; ++expert) {
    next[expert] = args.offsets[expert];
    args.offsets[expert + 1] = args.offsets[expert] + args.counts[expert];
  }
  for (int term = 0; term < args.terms; ++term) {
    const int32_t expert = args.experts[term];
    args.position[term] = grouped(expert) ? next[expert]++ : -1;
    if (args.position[term] >= 0) args.order[args.position[term]] = term;
  }
}

}  // namespace brigade::kernels
