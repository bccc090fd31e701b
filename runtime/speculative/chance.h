// All that acceptance leaves to chance, as two questions, so that a test can walk every branch and
// add up exact probabilities. KeyedChance answers from the request's counter-based random numbers.
#pragma once

#include <cstdint>

#include "runtime/sampling/draw.h"
#include "runtime/sampling/policy.h"
#include "runtime/sampling/random.h"

namespace brigade::runtime {

// u * q < p, strictly: a token that the target cannot produce is not accepted even at u = 0, and
// anything not a number is refused. `u` in [0, 1).
bool accepts(double u, double p, double q);

class Chance {
 public:
  virtual ~Chance() = default;
  // True with probability min(1, p / q).
  virtual bool accept(double p, double q, uint32_t position) = 0;
  // A token drawn from `distribution`.
  virtual int32_t pick(const Distribution& distribution, uint32_t position,
                       RandomPurpose purpose) = 0;
};

class KeyedChance final : public Chance {
 public:
  explicit KeyedChance(const RandomKey& key) : key_(key) {}
  bool accept(double p, double q, uint32_t position) override {
    return accepts(uniform(key_, position, RandomPurpose::kAccept, 0), p, q);
  }
  int32_t pick(const Distribution& distribution, uint32_t position,
               RandomPurpose purpose) override {
    return draw(distribution, key_, position, purpose);
  }

 private:
  const RandomKey key_;
};

}  // namespace brigade::runtime
