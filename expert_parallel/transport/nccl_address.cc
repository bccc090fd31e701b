#include "expert_parallel/transport/nccl_address.h"

#include <xxhash.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "expert_parallel/transport/transport.h"

namespace brigade::expert_parallel {
namespace {

// As it travels; the host transport's bytes and an XXH3 of all follow.
struct Fixed {
  char magic[4];
  int32_t version;
  GpuId gpu;
  NcclId ids[2];
  uint32_t has_ids;
  uint32_t host_bytes;
};
constexpr char kMagic[4] = {'B', 'R', 'N', '1'};
constexpr size_t kSumBytes = sizeof(uint64_t);

}  // namespace

std::string encode_nccl_address(const NcclAddress& address) {
  Fixed fixed = {.version = address.version,
                 .gpu = address.gpu,
                 .ids = {address.ids[0], address.ids[1]},
                 .has_ids = address.has_ids,
                 .host_bytes = static_cast<uint32_t>(address.host.size())};
  std::memcpy(fixed.magic, kMagic, sizeof(kMagic));
  std::string bytes(reinterpret_cast<const char*>(&fixed), sizeof(fixed));
  bytes += address.host;
  const uint64_t sum = XXH3_64bits(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  return bytes;
}

absl::StatusOr<NcclAddress> decode_nccl_address(const std::string& bytes) {
  const auto refuse = [&](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("data plane address of ", bytes.size(), " bytes ", why));
  };
  Fixed fixed;
  if (bytes.size() > kMaxAddressBytes) return refuse("is too long");
  if (bytes.size() < sizeof(fixed) + kSumBytes ||
      std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return refuse("is not one of NCCL's: do both ends use the same data plane?");
  }
  std::memcpy(&fixed, bytes.data(), sizeof(fixed));
  const size_t end = bytes.size() - kSumBytes;
  uint64_t sum;
  std::memcpy(&sum, bytes.data() + end, sizeof(sum));
  if (sum != XXH3_64bits(bytes.data(), end)) return refuse("was changed on its way");
  if (fixed.host_bytes != end - sizeof(fixed) || fixed.has_ids > 1) return refuse("is incomplete");
  return NcclAddress{.version = fixed.version,
                     .gpu = fixed.gpu,
                     .has_ids = fixed.has_ids == 1,
                     .ids = {fixed.ids[0], fixed.ids[1]},
                     .host = bytes.substr(sizeof(fixed), fixed.host_bytes)};
}

absl::Status check_pair(const NcclAddress& here, const NcclAddress& there) {
  if (here.has_ids == there.has_ids) {
    return absl::InvalidArgumentError(here.has_ids ? "both ends of an NCCL link made ids"
                                                   : "no end of an NCCL link made ids");
  }
  if (here.version != there.version) {
    return absl::InvalidArgumentError(
        absl::StrCat("NCCL is of version ", here.version, " here and ", there.version, " there"));
  }
  if (here.gpu == there.gpu) {
    return absl::InvalidArgumentError(
        "both ends are on the same GPU, which NCCL does not connect with itself: use the data "
        "plane host");
  }
  return absl::OkStatus();
}

}  // namespace brigade::expert_parallel
