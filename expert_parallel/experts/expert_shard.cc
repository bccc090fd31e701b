#include "expert_parallel/experts/expert_shard.h"

#include <xxhash.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {
namespace {

using kernels::Buffer;

// Packs through `pack(to)` into `buffer`: in place where the host can write it, else by a copy.
template <typename Pack>
absl::Status fill(kernels::Device& device, kernels::Stream& stream, const Buffer& buffer,
                  Pack&& pack, uint64_t* hash) {
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
    : device_(device),
      geometry_(geometry),
      slots_(size_t(geometry.moe_layers) * geometry.experts) {}

absl::Status ExpertShard::check_index(int moe_layer, int expert) const {
  if (moe_layer >= 0 && moe_layer < geometry_.moe_layers && expert >= 0 &&
      expert < geometry_.experts) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no expert ", expert, " in MoE layer ", moe_layer));
}

const ExpertShard::Slot& ExpertShard::slot(int moe_layer, int expert) const {
  CHECK(check_index(moe_layer, expert).ok());
  return slots_[size_t(moe_layer) * geometry_.experts + expert];
}

absl::Status ExpertShard::check_absent(int moe_layer, int expert) const {
  if (!holds(moe_layer, expert)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("expert ", expert, " of MoE layer ", moe_layer, " is loaded already"));
}

size_t ExpertShard::expert_bytes() const {
  return 2 * kernels::packed_bytes(geometry_.format, geometry_.ffn, geometry_.hidden) +
         kernels::packed_bytes(geometry_.format, geometry_.hidden, geometry_.ffn);
}

absl::StatusOr<PreparedExpert> ExpertShard::prepare(kernels::Stream& stream, int moe_layer,
                                                    int expert, const ExpertSource& source) const {
  RETURN_IF_ERROR(check_index(moe_layer, expert));
  const kernels::WeightFormat format = geometry_.format;
  const int64_t hidden = geometry_.hidden, ffn = geometry_.ffn;
  PreparedExpert prepared{.moe_layer = moe_layer, .expert = expert};
  ASSIGN_OR_RETURN(prepared.gate_up,
                   Buffer::allocate(device_, 2 * kernels::packed_bytes(format, ffn, hidden)));
  ASSIGN_OR_RETURN(prepared.down,
                   Buffer::allocate(device_, kernels::packed_bytes(format, hidden, ffn)));
  prepared.checksum = static_cast<uint64_t>(format);
  RETURN_IF_ERROR(fill(
      device_, stream, prepared.gate_up,
      [&](void* to) { kernels::pack_gate_up(format, source.gate, source.up, ffn, hidden, to); },
      &prepared.checksum));
  RETURN_IF_ERROR(fill(
      device_, stream, prepared.down,
      [&](void* to) { kernels::pack_matrix(format, source.down, hidden, ffn, to); },
      &prepared.checksum));
  return prepared;
}

absl::Status ExpertShard::insert(PreparedExpert expert) {
  RETURN_IF_ERROR(check_index(expert.moe_layer, expert.expert));
  RETURN_IF_ERROR(check_absent(expert.moe_layer, expert.expert));
  CHECK(expert.gate_up.device() == &device_ && expert.bytes() == expert_bytes());
  const int64_t hidden = geometry_.hidden, ffn = geometry_.ffn;
  Slot& slot = slots_[size_t(expert.moe_layer) * geometry_.experts + expert.expert];
  slot.packed = std::move(expert);
  slot.weights = {.gate_up = {slot.packed.gate_up.data(), geometry_.format,
                              2 * kernels::padded_outputs(ffn), hidden},
                  .down = {slot.packed.down.data(), geometry_.format, hidden, ffn},
                  .ffn = geometry_.ffn};
  slot.loaded = true;
  resident_bytes_ += slot.packed.bytes();
  return absl::OkStatus();
}

absl::Status ExpertShard::load(kernels::Stream& stream, int moe_layer, int expert,
                               const ExpertSource& source) {
  RETURN_IF_ERROR(check_absent(moe_layer, expert));
  ASSIGN_OR_RETURN(PreparedExpert prepared, prepare(stream, moe_layer, expert, source));
  return insert(std::move(prepared));
}

absl::StatusOr<PreparedExpert> ExpertShard::remove(int moe_layer, int expert) {
  RETURN_IF_ERROR(check_index(moe_layer, expert));
  Slot& slot = slots_[size_t(moe_layer) * geometry_.experts + expert];
  if (!slot.loaded) {
    return absl::NotFoundError(
        absl::StrCat("expert ", expert, " of MoE layer ", moe_layer, " is not loaded"));
  }
  resident_bytes_ -= slot.packed.bytes();
  PreparedExpert removed = std::move(slot.packed);
  slot = Slot();
  return removed;
}

absl::Status ExpertShard::unload(int moe_layer, int expert) {
  return remove(moe_layer, expert).status();
}

bool ExpertShard::holds(int moe_layer, int expert) const {
  return check_index(moe_layer, expert).ok() && slot(moe_layer, expert).loaded;
}

absl::StatusOr<uint64_t> ExpertShard::checksum(int moe_layer, int expert) const {
  RETURN_IF_ERROR(check_index(moe_layer, expert));
  if (!holds(moe_layer, expert)) {
    return absl::NotFoundError(
        absl::StrCat("expert ", expert, " of MoE layer ", moe_layer, " is not loaded"));
  }
  return slot(moe_layer, expert).packed.checksum;
}

const kernels::ExpertWeights& ExpertShard::weights(int moe_layer, int expert) const {
  CHECK(holds(moe_layer, expert));
  return slot(moe_layer, expert).weights;
}

}  // namespace brigade::expert_parallel
