// The checks that acceptance must pass, written against function pointers so that versions with a
// planted fault can be put through them as well. Each returns what is wrong, or nothing.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/speculative/accept.h"
#include "runtime/speculative/draft_law.h"

namespace brigade::tests {

struct Subject {
  runtime::Verdict (*verify)(const runtime::VerifyInput&, runtime::VerifyScratch*, runtime::Chance*,
                             runtime::Continuation*) = &runtime::verify;
  bool (*accepts)(double u, double p, double q) = &runtime::accepts;
  absl::Status (*law_from_weights)(std::span<const int32_t>, std::span<const float>, int,
                                   runtime::Distribution*) = &runtime::law_from_weights;
};

struct LawCheck {
  std::string name;
  std::string (*run)(const Subject&);
};

// All of them. `name` is what a planted fault names.
const std::vector<LawCheck>& law_checks();

// A version of the code with one fault, and the check that must fail for it.
struct PlantedFault {
  std::string name;
  std::string caught_by;
  Subject subject;
};
std::vector<PlantedFault> planted_faults();

}  // namespace brigade::tests
