// The module's table of ops. Any thread.
#pragma once

#include "kernels/ops/cuda_ops.h"

namespace brigade::kernels::cuda {

const CudaOps& ops_table();

}  // namespace brigade::kernels::cuda
