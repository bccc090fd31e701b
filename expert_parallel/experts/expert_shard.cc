#include "expert_parallel/experts/expert_shard.h"

#include <xxhash.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "kernels/ops/packed_parts.h"

namespace brigade::expert_parallel {
namespace {

// Down begins where the kernels can read it with wide loads.
constexpr size_t kMatrixAlignment = 64;

size_t down_offset(size_t gate_up_bytes) {
  return (gate_up_bytes + kMatrixAlignment - 1) / kMatrixAlignment * kMatrixAlignment;
}

absl::Status named(const absl::Status& status, const std::string& what) {
  return absl::Status(status.code(), absl::StrCat(what, ": ", std::string(status.message())));
}

// Rows that all lie in memory, of `bytes` each.
auto rows_at(const void* source, size_t bytes) {
  return [source, bytes](int64_t first, int64_t) -> const void* {
    return static_cast<const uint8_t*>(source) + static_cast<size_t>(first) * bytes;
  };
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
      pool_(device, down_offset(gate_up_bytes()) + down_bytes()),
      places_(size_t(geometry.moe_layers) * geometry.experts) {}

absl::Status ExpertShard::check_index(int moe_layer, int expert) const {
  if (moe_layer >= 0 && moe_layer < geometry_.moe_layers && expert >= 0 &&
      expert < geometry_.experts) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no expert ", expert, " in MoE layer ", moe_layer));
}

const ExpertShard::Place& ExpertShard::place(int moe_layer, int expert) const {
  CHECK(check_index(moe_layer, expert).ok());
  return places_[size_t(moe_layer) * geometry_.experts + expert];
}

absl::Status ExpertShard::check_absent(int moe_layer, int expert) const {
  if (!holds(moe_layer, expert)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("expert ", expert, " of MoE layer ", moe_layer, " is loaded already"));
}

size_t ExpertShard::gate_up_bytes() const {
  return 2 * kernels::packed_bytes(format_, geometry_.ffn, geometry_.hidden);
}

size_t ExpertShard::down_bytes() const {
  return kernels::packed_bytes(format_, geometry_.hidden, geometry_.ffn);
}

size_t ExpertShard::expert_bytes() const { return gate_up_bytes() + down_bytes(); }

absl::Status ExpertShard::plan(int experts) {
  const absl::Status planned = pool_.plan(static_cast<size_t>(std::max(experts, 0)));
  if (planned.ok()) return planned;
  return named(planned, absl::StrCat("memory for ", experts, " experts of ", expert_bytes(),
                                     " bytes"));
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

absl::Status ExpertShard::reserve(int more) {
  return pool_.reserve(static_cast<size_t>(std::max(more, 0)));
}

absl::StatusOr<PreparedExpert> ExpertShard::prepare(kernels::StagedUpload& upload, int moe_layer,
                                                    int expert, const ExpertSource& source) const {
  RETURN_IF_ERROR(check_index(moe_layer, expert));
  const int64_t hidden = geometry_.hidden, ffn = geometry_.ffn;
  const size_t element = kernels::dtype_bytes(kernels::weight_dtype(format_));
  const std::string name = absl::StrCat("expert ", expert, " of MoE layer ", moe_layer);
  PreparedExpert prepared{
      .moe_layer = moe_layer, .expert = expert, .checksum = checksum_of(source)};
  absl::StatusOr<kernels::Slot> memory_of = pool_.take();
  if (!memory_of.ok()) return named(memory_of.status(), absl::StrCat("memory for ", name));
  prepared.memory = *std::move(memory_of);
  auto* const memory = static_cast<std::byte*>(prepared.memory.data());
  const auto gate = rows_at(source.gate, hidden * element), up = rows_at(source.up, hidden * element);
  const auto down = rows_at(source.down, ffn * element);
  RETURN_IF_ERROR(upload.fill(name + " (gate and up)", memory, gate_up_bytes(),
                              [&](size_t first, size_t bytes, void* to) {
                                kernels::pack_gate_up_part(format_, gate, up, ffn, hidden, first,
                                                           bytes, to);
                              }));
  RETURN_IF_ERROR(upload.fill(name + " (down)", memory + down_offset(gate_up_bytes()), down_bytes(),
                              [&](size_t first, size_t bytes, void* to) {
                                kernels::pack_matrix_part(format_, down, hidden, ffn, first, bytes,
                                                          to);
                              }));
  ASSIGN_OR_RETURN(prepared.uploaded, upload.filled());
  return prepared;
}

absl::Status ExpertShard::insert(PreparedExpert expert) {
  RETURN_IF_ERROR(check_index(expert.moe_layer, expert.expert));
  RETURN_IF_ERROR(check_absent(expert.moe_layer, expert.expert));
  CHECK(expert.memory.device() == &device_ && expert.uploaded.ready());
  const int64_t hidden = geometry_.hidden, ffn = geometry_.ffn;
  Place& place = places_[size_t(expert.moe_layer) * geometry_.experts + expert.expert];
  place.packed = std::move(expert);
  const auto* const memory = static_cast<const std::byte*>(place.packed.memory.data());
  place.weights = {
      .gate_up = {memory, format_, kernels::gate_up_outputs(format_, ffn), hidden},
      .down = {memory + down_offset(gate_up_bytes()), format_, hidden, ffn},
      .ffn = geometry_.ffn};
  place.loaded = true;
  resident_bytes_ += expert_bytes();
  return absl::OkStatus();
}

absl::Status ExpertShard::load(kernels::StagedUpload& upload, int moe_layer, int expert,
                               const ExpertSource& source) {
  RETURN_IF_ERROR(check_absent(moe_layer, expert));
  ASSIGN_OR_RETURN(PreparedExpert prepared, prepare(upload, moe_layer, expert, source));
  RETURN_IF_ERROR(upload.finish());
  return insert(std::move(prepared));
}

absl::StatusOr<PreparedExpert> ExpertShard::remove(int moe_layer, int expert) {
  RETURN_IF_ERROR(check_index(moe_layer, expert));
  Place& place = places_[size_t(moe_layer) * geometry_.experts + expert];
  if (!place.loaded) {
    return absl::NotFoundError(
        absl::StrCat("expert ", expert, " of MoE layer ", moe_layer, " is not loaded"));
  }
  resident_bytes_ -= expert_bytes();
  PreparedExpert removed = std::move(place.packed);
  place = Place();
  return removed;
}

absl::Status ExpertShard::unload(int moe_layer, int expert) {
  return remove(moe_layer, expert).status();
}

bool ExpertShard::holds(int moe_layer, int expert) const {
  return check_index(moe_layer, expert).ok() && place(moe_layer, expert).loaded;
}

absl::StatusOr<uint64_t> ExpertShard::checksum(int moe_layer, int expert) const {
  RETURN_IF_ERROR(check_index(moe_layer, expert));
  if (!holds(moe_layer, expert)) {
    return absl::NotFoundError(
        absl::StrCat("expert ", expert, " of MoE layer ", moe_layer, " is not loaded"));
  }
  return place(moe_layer, expert).packed.checksum;
}

const kernels::ExpertWeights& ExpertShard::weights(int moe_layer, int expert) const {
  CHECK(holds(moe_layer, expert));
  return place(moe_layer, expert).weights;
}

}  // namespace brigade::expert_parallel
