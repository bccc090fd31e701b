#include "expert_parallel/experts/expert_shard.h"

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {
namespace {

using kernels::Buffer;

// Packs through `pack(to)` into `buffer`: in place where the host can write it, else by a copy.
template <typename Pack>
absl::Status fill(kernels::Device& device, kernels::Stream& stream, const Buffer& buffer, Pack&& pack,
                  uint64_t* hash) {
  if (device.kind() == kernels::DeviceKind::kCpu) {
    pack(buffer.data());
    *hash = XXH3_64bits_withSeed(buffer.data(), buffer.bytes(), *hash);
    return absl::OkStatus();
  }
  std::vector<uint8_t> host(buffer.bytes());
  pack(host.data());
  *hash = XXH3_64bits_withSeed(host.data(), host.size(), *hash);
  RETURN_IF_ERROR(stream.copy_to_device(buffer.data(), host.data(), host.size()));
  return stream.synchronize(absl::Now() + absl::Minutes(1));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertShard>> ExpertShard::create(kernels::Device& device,
                                                                 const ExpertGeometry& geometry) {
  if (geometry.moe_layers < 0 || geometry.experts < 1 || geometry.hidden < 1 || geometry.ffn < 1) {
    return absl::InvalidArgumentError("expert shard: every size must be at least 1");
  }
  return std::unique_ptr<ExpertShard>(new ExpertShard(device, geometry));
}

ExpertShard::ExpertShard(kernels::Device& device, const ExpertGeometry& geometry)
    : device_(device), geometry_(geometry), slots_(size_t(geometry.moe_layers) * geometry.experts) {}

absl::Status ExpertShard::check_index(int moe_layer, int expert) const {
  if (moe_layer >= 0 && moe_layer < geometry_.moe_layers && expert >= 0 && expert < geometry_.experts) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("no expert ", expert, " in MoE layer ", moe_layer));
}

const ExpertShard::Slot& ExpertShard::slot(int moe_layer, int expert) const {
  CHECK(check_index(moe_layer, expert).ok());
  return slots_[size_t(moe_layer) * geometry_.experts + expert];
}

absl::Status ExpertShard::load(kernels::Stream& stream, int moe_layer, int expert,
                               const ExpertSource& source) {
  RETURN_IF_ERROR(check_index(moe_layer, expert));
  Slot& slot = slots_[size_t(moe_layer) * geometry_.experts + expert];
  if (slot.loaded) {
    return absl::AlreadyExistsError(
        absl::StrCat("expert ", expert, " of MoE layer ", moe_layer, " is loaded already"));
  }
  const kernels::WeightFormat format = geometry_.format;
  const int64_t hidden = geometry_.hidden, ffn = geometry_.ffn;
  ASSIGN_OR_RETURN(slot.gate_up,
                   Buffer::allocate(device_, 2 * kernels::packed_bytes(format, ffn, hidden)));
  ASSIGN_OR_RETURN(slot.down, Buffer::allocate(device_, kernels::packed_bytes(format, hidden, ffn)));
  uint64_t hash = static_cast<uint64_t>(format);
  RETURN_IF_ERROR(fill(
      device_, stream, slot.gate_up,
      [&](void* to) { kernels::pack_gate_up(format, source.gate, source.up, ffn, hidden, to); }, &hash));
  RETURN_IF_ERROR(fill(
      device_, stream, slot.down,
      [&](void* to) { kernels::pack_matrix(format, source.down, hidden, ffn, to); }, &hash));
  slot.weights = {.gate_up = {slot.gate_up.data(), format, 2 * kernels::padded_outputs(ffn), hidden},
                  .down = {slot.down.data(), format, hidden, ffn},
                  .ffn = geometry_.ffn};
  slot.checksum = hash;
  slot.loaded = true;
  resident_bytes_ += slot.gate_up.bytes() + slot.down.bytes();
  return absl::OkStatus();
}

absl::Status ExpertShard::unload(int moe_layer, int expert) {
  RETURN_IF_ERROR(check_index(moe_layer, expert));
  Slot& slot = slots_[size_t(moe_layer) * geometry_.experts + expert];
  if (!slot.loaded) {
    return absl::NotFoundError(absl::StrCat("expert ", expert, " of MoE layer ", moe_layer, " is not loaded"));
  }
  resident_bytes_ -= slot.gate_up.bytes() + slot.down.bytes();
  slot = Slot();
  return absl::OkStatus();
}

bool ExpertShard::holds(int moe_layer, int expert) const {
  return check_index(moe_layer, expert).ok() && slot(moe_layer, expert).loaded;
}

size_t ExpertShard::resident_bytes() const { return resident_bytes_; }

absl::StatusOr<uint64_t> ExpertShard::checksum(int moe_layer, int expert) const {
  RETURN_IF_ERROR(check_index(moe_layer, expert));
  if (!holds(moe_layer, expert)) {
    return absl::NotFoundError(absl::StrCat("expert ", expert, " of MoE layer ", moe_layer, " is not loaded"));
  }
  return slot(moe_layer, expert).checksum;
}

const kernels::ExpertWeights& ExpertShard::weights(int moe_layer, int expert) const {
  CHECK(holds(moe_layer, expert));
  return slot(moe_layer, expert).weights;
}

}  // namespace brigade::expert_parallel
