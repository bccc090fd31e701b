#include "kernels/cpu/cpu_kernels.h"

namespace brigade::kernels {

void cpu::accept_drafts(const AcceptDraftsArgs& args, ThreadPool&) {
  for (int64_t sequence = 0; sequence < args.sequences; ++sequence) {
    const int32_t* drafts = args.drafts + sequence * args.max_drafts;
    const int32_t* drawn = args.drawn + args.first_row[sequence];
    int accepted = 0;
    while (accepted < args.num_drafts[sequence] && drafts[accepted] == drawn[accepted]) ++accepted;
    args.accepted[sequence] = accepted;
    args.next_token[sequence] = drawn[accepted];
  }
}

}  // namespace brigade::kernels
