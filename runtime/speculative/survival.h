// How far drafts survive: for each position the measured probability that a draft is accepted when
// all before it were. Counts fade, so that the curve follows the text; positions without counts
// take the curve of a wider group (all sequences of one drafter), and there the position before.
// Step thread.
#pragma once

#include <array>

namespace brigade::runtime {

inline constexpr int kMaxDraftDepth = 16;

class Survival {
 public:
  // `memory`: tested drafts of one position after which their weight has fallen to 1/e.
  explicit Survival(double memory = 100);

  // A pass tested `tested` drafts and accepted the first `accepted`.
  void record(int tested, int accepted);
  // A step went by without a test of drafts from `position` on: what is known of them fades slowly,
  // so that bad luck is not believed for ever.
  void fade(int position);
  // Probability that draft `position` (from 0) is accepted when those before it were. `wider` may
  // be null.
  double conditional(int position, const Survival* wider) const;
  // The same, as high as few counts leave open.
  double hopeful(int position, const Survival& wider) const;

 private:
  double keep_;
  std::array<double, kMaxDraftDepth> tested_{};
  std::array<double, kMaxDraftDepth> accepted_{};
};

}  // namespace brigade::runtime
