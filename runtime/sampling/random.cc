#include "runtime/sampling/random.h"

#include <sys/random.h>

#include "kernels/core/check.h"
#include "kernels/ops/math.h"

namespace brigade::runtime {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double uniform(const RandomKey& key, uint32_t position, RandomPurpose purpose, uint32_t token) {
  const auto bits = philox4x32({position, static_cast<uint32_t>(purpose), token, key.sample_index},
                               {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  const uint64_t word = (uint64_t{bits[0]} << 32) | bits[1];
  // The middle of one of 2^52 equal intervals: exact in f64, never 0 or 1.
  return (static_cast<double>(word >> 12) + 0.5) * 0x1p-52;
}

double gumbel(const RandomKey& key, uint32_t position, RandomPurpose purpose, uint32_t token) {
  return -kernels::log_f64(-kernels::log_f64(uniform(key, position, purpose, token)));
}

uint64_t random_seed() {
  uint64_t seed = 0;
  CHECK(getrandom(&seed, sizeof seed, 0) == sizeof seed);
  return seed;
}

}  // namespace brigade::runtime
