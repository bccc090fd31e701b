// The bytes that one end of an NCCL link gives to the other: the host transport's own address, the
// ids of the pair's two communicators (from one of the ends), and what must fit: the library's
// version and two different GPUs. Checked before any of it reaches a library. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace brigade::expert_parallel {

using NcclId = std::array<char, 128>;
using GpuId = std::array<char, 16>;

struct NcclAddress {
  int32_t version = 0;
  GpuId gpu{};
  bool has_ids = false;
  std::array<NcclId, 2> ids{};  // of the communicator to the end without ids, and of the one back
  std::string host;
};

std::string encode_nccl_address(const NcclAddress& address);
// INVALID_ARGUMENT: not such bytes, cut short, too long, or changed on the way.
absl::StatusOr<NcclAddress> decode_nccl_address(const std::string& bytes);

// Whether two ends can make a pair. INVALID_ARGUMENT says what does not fit.
absl::Status check_pair(const NcclAddress& here, const NcclAddress& there);

}  // namespace brigade::expert_parallel
