// Runs the coordinator's own part of a dispatch plan: experts of the local shard over rows where
// they lie, answers into their slots. Step thread; no allocation after create().
#pragma once

#include <memory>
#include <vector>

#include "expert_parallel/experts/expert_shard.h"
#include "expert_parallel/routing/dispatch_plan.h"
#include "kernels/core/host_buffer.h"

namespace brigade::expert_parallel {

class LocalExperts {
 public:
  static absl::StatusOr<std::unique_ptr<LocalExperts>> create(kernels::Device& device,
                                                              const ExpertShard& shard,
                                                              int max_rows);
  // x: device [*, hidden]; answers: device, slots of the wire dtype. Enqueues; plan must stay until
  // that has run. Every expert of the work must be held.
  absl::Status run(kernels::Stream& stream, const DispatchPlan& plan, const RankWork& work,
                   int moe_layer, const float* x, void* answers);

 private:
  explicit LocalExperts(const ExpertShard& shard) : shard_(shard) {}

  const ExpertShard& shard_;
  std::vector<kernels::ExpertGroup> groups_;
  // Rows of the work's entries, then their slots. Not on the CPU, where the op reads the plan
  // itself.
  kernels::HostBuffer host_index_;
  kernels::Buffer index_, scratch_;
};

}  // namespace brigade::expert_parallel
