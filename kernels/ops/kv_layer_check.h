// Checks a KvLayerView for the ops that read or write the cache. Private to kernels/ops.
#pragma once

#include "absl/status/status.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/kv_layout.h"

namespace brigade::kernels {

absl::Status check_kv_layer(const char* op, const KvLayerView& cache);
void visit_kv_layer(KvLayerView& cache, PointerVisitor& pointers);

}  // namespace brigade::kernels
