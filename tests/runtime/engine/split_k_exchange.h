// A planted fault: an exchange whose experts cut K of the down projection into as many parts as the
// device has threads and add the parts. Right to a rounding error, but its bits depend on the
// thread count. With `fixed_parts` it is merely another order of addition, the same always. CPU
// device only.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/model/load_model.h"

namespace brigade::tests {

// Experts come from the checkpoint in `folder`, f32. fixed_parts 0: one part a thread.
absl::StatusOr<runtime::ExchangeFactory> split_k_exchange(const std::string& folder,
                                                          int fixed_parts);

}  // namespace brigade::tests
