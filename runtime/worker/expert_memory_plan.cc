#include "runtime/worker/expert_memory_plan.h"

#include <algorithm>

namespace brigade::runtime::worker {

int64_t planned_experts(const ExpertMemoryNeed& need) {
  if (need.wanted <= 0 || need.wanted >= need.all) return need.wanted;
  const int64_t workers = (need.all + need.wanted - 1) / need.wanted;  // 2 or more
  const int64_t share_after_loss = (need.all + workers - 2) / (workers - 1);
  int64_t planned = std::max(need.wanted + 1, share_after_loss);
  if (need.limit_bytes > 0) planned = std::min(planned, need.limit_bytes / need.expert_bytes);
  if (need.free_bytes > 0) {
    const int64_t left = need.free_bytes - (need.wanted - need.here) * need.expert_bytes;
    planned = std::min(planned, need.wanted + std::max<int64_t>(left, 0) / 2 / need.expert_bytes);
  }
  return std::max(planned, need.wanted);
}

}  // namespace brigade::runtime::worker
