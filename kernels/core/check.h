// CHECK(condition) << nothing: aborts with file and line when one of our own invariants is broken.
// Never for input: whatever a user, a file or a peer can cause is an absl::Status.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace brigade::kernels {

[[noreturn]] inline void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
  std::abort();
}

}  // namespace brigade::kernels

#define CHECK(condition) \
  ((condition) ? (void)0 : ::brigade::kernels::check_failed(#condition, __FILE__, __LINE__))
