// Counts what operator new hands out, for tests that promise "no allocation" or "no large
// allocation". Linking this file's library replaces operator new in that binary; under a sanitizer
// it does not and counts_allocations() is false. Counters are global over all threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace brigade::tests {

bool counts_allocations();

struct Allocations {
  uint64_t count = 0;
  uint64_t bytes = 0;    // sum of all requests
  uint64_t largest = 0;  // largest single request since reset_largest_allocation()
};
Allocations allocations();
void reset_largest_allocation();

}  // namespace brigade::tests
