// Placements for tests: even, skewed towards the low ranks (some hold nothing), or with replicas.
#pragma once

#include <random>

#include "expert_parallel/experts/expert_shard.h"
#include "expert_parallel/routing/placement.h"

namespace brigade::tests {

// Over ranks 0 .. workers - 1; everything at the coordinator when there are none.
expert_parallel::Placement random_placement(const expert_parallel::ExpertGeometry& geometry,
                                            int workers, std::mt19937_64& random);

}  // namespace brigade::tests
