// What travels behind each head on the host transport of an NCCL link: the message's number and the
// length of its body, with a checksum of their own. NCCL compares no lengths: two ends that
// disagree wait for ever, so a length that was changed on its way must not reach it. Pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "expert_parallel/transport/nccl_module.h"

namespace brigade::expert_parallel {

struct NcclTrailer {
  uint64_t number = 0;  // of the message on its link, from 0
  uint32_t body_bytes = 0;
  uint32_t check = 0;  // of the two above
};
static_assert(sizeof(NcclTrailer) == kNcclTrailerBytes);

NcclTrailer make_trailer(uint64_t number, size_t body_bytes);

// The trailer at the end of a message. Nothing: it is too short, or the trailer was changed.
std::optional<NcclTrailer> read_trailer(std::span<const std::byte> message);

}  // namespace brigade::expert_parallel
