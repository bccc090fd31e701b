// From rope settings to rotation speeds, one per pair of lanes. A pure function.
#pragma once

#include <vector>

#include "runtime/model/model_spec.h"

namespace brigade::runtime {

// rotary_dim / 2 inverse frequencies in f64; llama3 keeps short wave lengths, divides long ones by
// factor and blends between, as the Llama 3.1 reference does.
std::vector<double> inverse_frequencies(const RopeSpec& rope);

}  // namespace brigade::runtime
