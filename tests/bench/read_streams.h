// The inner loop of the read ceiling, with the widest loads of this CPU. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace brigade::bench {

// Reads `bytes` (a multiple of 2048 * streams, 64-byte aligned) as 2, 4 or 8 sequential streams,
// four lines of each in turn, fetching `ahead` bytes in advance. Returns a sum over what it read.
uint64_t read_streams(const uint8_t* data, size_t bytes, int streams, size_t ahead);

}  // namespace brigade::bench
