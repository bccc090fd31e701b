// A rolling hash over the token ids of a text from position 0 on. Coordinator and draft worker
// compute the same; it is part of the wire's contract. It finds texts that differ; ids are compared
// where a wrong match would matter.
#pragma once

#include <cstdint>

namespace brigade::runtime {

inline constexpr uint64_t kEmptyTextHash = 0x9E3779B97F4A7C15u;

inline uint64_t extend_text_hash(uint64_t hash, int32_t token) {
  hash = (hash ^ (static_cast<uint64_t>(static_cast<uint32_t>(token)) + 1)) * 0xBF58476D1CE4E5B9u;
  return hash ^ (hash >> 29);
}

}  // namespace brigade::runtime
