// The matrix product on the CPU, over plain memory. Arguments are checked by kernels/ops/matmul.cc.
#pragma once

#include "kernels/core/thread_pool.h"
#include "kernels/ops/dense.h"

namespace brigade::kernels::cpu {

void matmul(const MatmulArgs& args, ThreadPool& threads);

}  // namespace brigade::kernels::cpu
