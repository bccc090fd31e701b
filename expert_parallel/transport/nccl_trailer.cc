#include "expert_parallel/transport/nccl_trailer.h"

#include <xxhash.h>

#include <cstring>

namespace brigade::expert_parallel {
namespace {

uint32_t check_of(const NcclTrailer& trailer) {
  return static_cast<uint32_t>(XXH3_64bits(&trailer, offsetof(NcclTrailer, check)));
}

}  // namespace

NcclTrailer make_trailer(uint64_t number, size_t body_bytes) {
  NcclTrailer trailer = {.number = number, .body_bytes = static_cast<uint32_t>(body_bytes)};
  trailer.check = check_of(trailer);
  return trailer;
}

std::optional<NcclTrailer> read_trailer(std::span<const std::byte> message) {
  NcclTrailer trailer;
  if (message.size() < sizeof(trailer)) return std::nullopt;
  std::memcpy(&trailer, &message[message.size() - sizeof(trailer)], sizeof(trailer));
  if (trailer.check != check_of(trailer)) return std::nullopt;
  return trailer;
}

}  // namespace brigade::expert_parallel
