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
                  Pack&& pack) {
  if (device.kind() == kernels::DeviceKind::kCpu) {
    pack(buffer.data());
    return absl::OkStatus();
  }
  std::vector<uint8_t> host(buffer.bytes());
  pack(host.data());
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
      format_(kernels::weight_format(kernels::weight_dtype(geometry.format),
                                     kernels::weight_layout(device))),
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
  return 2 * kernels::packed_bytes(format_, geometry_.ffn, geometry_.hidden) +
         kernels::packed_bytes(format_, geometry_.hidden, geometry_.ffn);
}

uint64_t ExpertShard::checksum_of(const ExpertSource& source) const {
  const size_t bytes = size_t(geometry_.ffn) * geometry_.hidden *
                       kernels::dtype_bytes(kernels::weight_dtype(format_));
  auto hash = static_cast<uint64_t>(geometry_.format);
  for (const void* matrix : {source.gate, source.up, source.down}) {
    hash = XXH3_64bits_withSeed(matrix, bytes, hash);
  }
  return hash;
}

absl::StatusOr<PreparedExpert> ExpertShard::prepare(kernels::Stream& stream, int moe_layer,
                                                    int expert, const ExpertSource& source) const {
  RETURN_IF_ERROR(check_index(moe_layer, expert));
  const int64_t hidden = geometry_.hidden, ffn = geometry_.ffn;
  PreparedExpert prepared{
      .moe_layer = moe_layer, .expert = expert, .checksum = checksum_of(source)};
  ASSIGN_OR_RETURN(prepared.gate_up,
                   Buffer::allocate(device_, 2 * kernels::packed_bytes(format_, ffn, hidden)));
  ASSIGN_OR_RETURN(prepared.down,
                   Buffer::allocate(device_, kernels::packed_bytes(format_, hidden, ffn)));
  RETURN_IF_ERROR(fill(device_, stream, prepared.gate_up, [&](void* to) {
    kernels::pack_gate_up(format_, source.gate, source.up, ffn, hidden, to);
  }));
  RETURN_IF_ERROR(fill(device_, stream, prepared.down, [&](void* to) {
    kernels::pack_matrix(format_, source.down, hidden, ffn, to);
  }));
  return prepared;
}

absl::Status ExpertShard::insert(PreparedExpert expert) {
  RETURN_IF_ERROR(check_index(expert.moe_layer, expert.expert));
  RETURN_IF_ERROR(check_absent(expert.moe_layer, expert.expert));
  CHECK(expert.gate_up.device() == &device_ && expert.bytes() == expert_bytes());
  const int64_t hidden = geometry_.hidden, ffn = geometry_.ffn;
  Slot& slot = slots_[size_t(expert.moe_layer) * geometry_.experts + expert.expert];
  slot.packed = std::move(expert);
  slot.weights = {.gate_up = {slot.packed.gate_up.data(), format_,
                              kernels::gate_up_outputs(format_, ffn), hidden},
                  .down = {slot.packed.down.data(), format_, hidden, ffn},
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
