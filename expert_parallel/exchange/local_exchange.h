// The exchange of a coordinator that holds every expert itself: same plan, same rounding of answers
// to the wire dtype, no copy of rows. One object per microbatch; step thread only.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "expert_parallel/exchange/exchange.h"
#include "expert_parallel/experts/expert_shard.h"

namespace brigade::expert_parallel {

// `device` and `shard` must outlive the exchange; layers have at most max_rows rows.
absl::StatusOr<std::unique_ptr<Exchange>> make_local_exchange(kernels::Device& device,
                                                              const ExpertShard& shard,
                                                              int max_rows);

}  // namespace brigade::expert_parallel
