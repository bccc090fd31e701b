// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011). A draw is a pure function of
// (request seed, sample index, absolute position, purpose, token id); there is no generator state, so
// batching, preemption and resumption cannot shift anything.
#pragma once

#include <array>
#include <cstdint>

namespace brigade::runtime {

// Never shared between uses.
enum class RandomPurpose : uint32_t { kGumbel = 1, kAccept = 2, kResidual = 3, kBonus = 4, kDraft = 5 };

struct RandomKey {
  uint64_t seed = 0;
  uint32_t sample_index = 0;
};

// The raw block function, 10 rounds. counter = {c0..c3}, key = {k0, k1}.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform in (0, 1): 52 bits, never 0 and never 1.
double uniform(const RandomKey& key, uint32_t position, RandomPurpose purpose, uint32_t token);

// Standard Gumbel noise, -log(-log(u)), with our own log.
double gumbel(const RandomKey& key, uint32_t position, RandomPurpose purpose, uint32_t token);

// Fresh seed for a request that named none; from the operating system.
uint64_t random_seed();

}  // namespace brigade::runtime
