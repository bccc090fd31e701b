// The grouped expert FFN on the CPU, over plain memory. Arguments are checked by
// kernels/ops/expert_ffn.cc.
#pragma once

#include <cstddef>

#include "kernels/core/thread_pool.h"
#include "kernels/ops/moe.h"

namespace brigade::kernels::cpu {

void expert_ffn(const ExpertFfnArgs& args, ThreadPool& threads);
size_t expert_ffn_scratch_bytes(int max_total, int max_ffn);

}  // namespace brigade::kernels::cpu
