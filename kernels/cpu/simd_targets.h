// Which instruction sets the kernels can run with here. Tests force each in turn to show that the
// bits do not depend on it. Not for use while ops run.
#pragma once

#include <string>
#include <vector>

namespace brigade::kernels {

// Best first, for example {"AVX3", "AVX2"}; AVX3 is AVX-512.
std::vector<std::string> simd_targets();
// True when `name` is one of simd_targets() and every later op uses it; "" lifts the restriction.
bool force_simd_target(const std::string& name);

}  // namespace brigade::kernels
