// The module's table of ops, one a maths mode. Any thread.
#pragma once

#include "kernels/ops/cuda_ops.h"

namespace brigade::kernels::cuda {

const CudaOps& ops_table(CudaMath math);

}  // namespace brigade::kernels::cuda
