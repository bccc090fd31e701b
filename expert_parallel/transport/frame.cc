#include "expert_parallel/transport/frame.h"

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // the CPU's widest vectors: the same sums, four times as fast
#endif

#include <bit>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"

namespace brigade::expert_parallel {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

constexpr uint32_t kMagic = 0x46475242;  // "BRGF"
constexpr uint16_t kRowsApart = 1;

// The header as it travels. Natural alignment, no padding.
struct WireHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint8_t kind;
  uint8_t dtype;
  uint16_t flags;
  uint32_t hidden;
  uint64_t coordinator_id;
  std::array<uint8_t, 16> secret;
  int32_t receiver_slot, sender_slot;
  uint64_t receiver_incarnation, sender_incarnation;
  uint64_t placement_version;
  uint64_t step;
  uint32_t microbatch, layer;
  uint32_t frame_index, frame_count;
  uint32_t row_count, entry_count;
  uint32_t payload_bytes;  // index with its padding, and rows
  uint32_t reserved1;
  uint64_t reserved2;
  uint64_t checksum;
};
static_assert(sizeof(WireHeader) == kFrameHeaderBytes);

// XXH3 of the payload, seeded by XXH3 of everything before the checksum field.
uint64_t checksum_of(const std::byte* frame, size_t payload_bytes) {
  const uint64_t head = XXH3_64bits(frame, offsetof(WireHeader, checksum));
  return XXH3_64bits_withSeed(frame + kFrameHeaderBytes, payload_bytes, head);
}

size_t rows_bytes(uint32_t row_count, uint32_t hidden, kernels::DType dtype) {
  return size_t(row_count) * hidden * kernels::dtype_bytes(dtype);
}

// `size`: of the whole frame, wherever its rows are.
bool known_sizes(const WireHeader& wire, const FrameLimits& limits, size_t size) {
  if (wire.magic != kMagic || wire.version != kFrameVersion ||
      wire.header_bytes != kFrameHeaderBytes) {
    return false;
  }
  const auto kind = static_cast<FrameKind>(wire.kind);
  const bool dispatch = kind == FrameKind::kDispatch, decline = kind == FrameKind::kDecline;
  if (!dispatch && !decline && kind != FrameKind::kAnswer) return false;
  const auto dtype = dispatch ? limits.dispatch_dtype : limits.answer_dtype;
  if (wire.dtype != static_cast<uint8_t>(dtype)) return false;
  if (wire.hidden != static_cast<uint32_t>(limits.hidden)) return false;
  if (wire.layer >= static_cast<uint32_t>(limits.moe_layers)) return false;
  if (wire.frame_index >= wire.frame_count) return false;
  // Both counts are bounded before they are multiplied.
  if (wire.row_count > kMaxFrameBytes || wire.entry_count > kMaxFrameBytes / sizeof(uint32_t))
    return false;
  if (dispatch ? wire.entry_count < wire.row_count
               : wire.row_count != (decline ? 0 : wire.entry_count)) {
    return false;
  }
  const size_t expected =
      frame_index_bytes(kind, wire.entry_count) + rows_bytes(wire.row_count, wire.hidden, dtype);
  return wire.payload_bytes == expected && size == kFrameHeaderBytes + expected;
}

// Dispatch: rows in order, each with a term; experts and slots in range.
bool known_entries(const FrameView& view, const FrameLimits& limits) {
  uint32_t next_row = 0;  // rows below have had a term
  for (uint32_t i = 0; i < view.header.entry_count; ++i) {
    const FrameEntry entry = view.entry(i);
    if (entry.row != next_row && entry.row + 1u != next_row) return false;
    next_row = entry.row + 1u;
    if (next_row > view.header.row_count || entry.expert >= limits.experts ||
        entry.slot >= static_cast<uint32_t>(limits.max_slots)) {
      return false;
    }
  }
  return next_row == view.header.row_count;
}

bool known_slots(const FrameView& view, const FrameLimits& limits) {
  for (uint32_t i = 0; i < view.header.entry_count; ++i) {
    if (view.slot(i) >= static_cast<uint32_t>(limits.max_slots)) return false;
  }
  return true;
}

FrameHeader from_wire(const WireHeader& wire) {
  return {.kind = static_cast<FrameKind>(wire.kind),
          .dtype = static_cast<kernels::DType>(wire.dtype),
          .hidden = wire.hidden,
          .session = {wire.coordinator_id, wire.secret},
          .receiver = {wire.receiver_slot, wire.receiver_incarnation},
          .sender = {wire.sender_slot, wire.sender_incarnation},
          .placement_version = wire.placement_version,
          .step = wire.step,
          .microbatch = wire.microbatch,
          .layer = wire.layer,
          .frame_index = wire.frame_index,
          .frame_count = wire.frame_count,
          .row_count = wire.row_count,
          .entry_count = wire.entry_count};
}

// Time does not depend on where the secrets differ.
bool same_secret(const Session& a, const Session& b) {
  uint8_t different = 0;
  for (size_t i = 0; i < a.secret.size(); ++i) different |= a.secret[i] ^ b.secret[i];
  return different == 0;
}

Refusal check_party(const Party& named, const Party& expected) {
  if (named.slot != expected.slot) return Refusal::kWrongSlot;
  return named.incarnation == expected.incarnation ? Refusal::kNone : Refusal::kStaleIncarnation;
}

}  // namespace

const char* refusal_name(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "none";
    case Refusal::kMalformed:
      return "malformed";
    case Refusal::kDamaged:
      return "damaged";
    case Refusal::kStranger:
      return "stranger";
    case Refusal::kWrongSlot:
      return "wrong_slot";
    case Refusal::kStaleIncarnation:
      return "stale_incarnation";
    case Refusal::kCount:
      break;
  }
  return "?";
}

uint64_t RefusalCounts::total() const {
  uint64_t sum = 0;
  for (const auto& count : counts_) sum += count.load(std::memory_order_relaxed);
  return sum;
}

FrameEntry FrameView::entry(uint32_t i) const {
  FrameEntry entry;
  std::memcpy(&entry, index + size_t(i) * sizeof(entry), sizeof(entry));
  return entry;
}

uint32_t FrameView::slot(uint32_t i) const {
  uint32_t slot;
  std::memcpy(&slot, index + size_t(i) * sizeof(slot), sizeof(slot));
  return slot;
}

size_t frame_index_bytes(FrameKind kind, uint32_t entry_count) {
  const size_t each = kind == FrameKind::kDispatch ? sizeof(FrameEntry) : sizeof(uint32_t);
  return (entry_count * each + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}

size_t frame_bytes(const FrameHeader& header) {
  return kFrameHeaderBytes + frame_index_bytes(header.kind, header.entry_count) +
         rows_bytes(header.row_count, header.hidden, header.dtype);
}

namespace {

// Writes everything around an index that is in place. `covered`: bytes behind the header that the
// checksum covers.
void seal(const FrameHeader& header, std::byte* frame, uint16_t flags, size_t payload,
          size_t covered) {
  const size_t each = header.kind == FrameKind::kDispatch ? sizeof(FrameEntry) : sizeof(uint32_t);
  const size_t used = header.entry_count * each;
  std::memset(frame_index(frame) + used, 0,
              frame_index_bytes(header.kind, header.entry_count) - used);
  WireHeader wire = {.magic = kMagic,
                     .version = kFrameVersion,
                     .header_bytes = kFrameHeaderBytes,
                     .kind = static_cast<uint8_t>(header.kind),
                     .dtype = static_cast<uint8_t>(header.dtype),
                     .flags = flags,
                     .hidden = header.hidden,
                     .coordinator_id = header.session.coordinator_id,
                     .secret = header.session.secret,
                     .receiver_slot = header.receiver.slot,
                     .sender_slot = header.sender.slot,
                     .receiver_incarnation = header.receiver.incarnation,
                     .sender_incarnation = header.sender.incarnation,
                     .placement_version = header.placement_version,
                     .step = header.step,
                     .microbatch = header.microbatch,
                     .layer = header.layer,
                     .frame_index = header.frame_index,
                     .frame_count = header.frame_count,
                     .row_count = header.row_count,
                     .entry_count = header.entry_count,
                     .payload_bytes = static_cast<uint32_t>(payload)};
  std::memcpy(frame, &wire, sizeof(wire));
  wire.checksum = checksum_of(frame, covered);
  std::memcpy(frame, &wire, sizeof(wire));
}

Refusal parse(std::span<const std::byte> head, std::span<const std::byte> device_rows,
              uint16_t flags, const FrameLimits& limits, FrameView* view) {
  WireHeader wire;
  const size_t size = head.size() + device_rows.size();
  if (head.size() < sizeof(wire) || size > kMaxFrameBytes) return Refusal::kMalformed;
  std::memcpy(&wire, head.data(), sizeof(wire));
  if (wire.flags != flags || !known_sizes(wire, limits, size)) return Refusal::kMalformed;
  view->header = from_wire(wire);
  const size_t index = frame_index_bytes(view->header.kind, wire.entry_count);
  if (flags == kRowsApart && head.size() != kFrameHeaderBytes + index) return Refusal::kMalformed;
  const size_t covered = flags == kRowsApart ? index : wire.payload_bytes;
  if (checksum_of(head.data(), covered) != wire.checksum) return Refusal::kDamaged;
  view->index = head.data() + kFrameHeaderBytes;
  view->rows_on_device = flags == kRowsApart;
  view->rows = view->rows_on_device ? device_rows.data() : view->index + index;
  const bool known = view->header.kind == FrameKind::kDispatch ? known_entries(*view, limits)
                                                               : known_slots(*view, limits);
  return known ? Refusal::kNone : Refusal::kMalformed;
}

}  // namespace

size_t seal_frame(const FrameHeader& header, std::byte* frame) {
  const size_t bytes = frame_bytes(header);
  CHECK(bytes <= kMaxFrameBytes && header.row_count <= 0x10000);
  seal(header, frame, 0, bytes - kFrameHeaderBytes, bytes - kFrameHeaderBytes);
  return bytes;
}

size_t seal_head(const FrameHeader& header, std::byte* head) {
  const size_t bytes = frame_bytes(header);
  CHECK(bytes <= kMaxFrameBytes && header.row_count <= 0x10000);
  const size_t index = frame_index_bytes(header.kind, header.entry_count);
  seal(header, head, kRowsApart, bytes - kFrameHeaderBytes, index);
  return kFrameHeaderBytes + index;
}

Refusal parse_frame(std::span<const std::byte> bytes, const FrameLimits& limits, FrameView* view) {
  return parse(bytes, {}, 0, limits, view);
}

Refusal parse_device_frame(std::span<const std::byte> head, std::span<const std::byte> device_rows,
                           const FrameLimits& limits, FrameView* view) {
  return parse(head, device_rows, kRowsApart, limits, view);
}

std::string describe_head(std::span<const std::byte> head) {
  WireHeader wire;
  if (head.size() < sizeof(wire)) return absl::StrCat("a head of ", head.size(), " bytes");
  std::memcpy(&wire, head.data(), sizeof(wire));
  return absl::StrCat("a head of step ", wire.step, ", microbatch ", wire.microbatch, ", layer ",
                      wire.layer, ": ", wire.row_count, " rows, ", wire.entry_count, " entries");
}

Refusal check_parties(const FrameHeader& header, const Session& session, const Party& self,
                      const Party& peer) {
  if (header.session.coordinator_id != session.coordinator_id ||
      !same_secret(header.session, session)) {
    return Refusal::kStranger;
  }
  const Refusal refusal = check_party(header.receiver, self);
  return refusal != Refusal::kNone ? refusal : check_party(header.sender, peer);
}

}  // namespace brigade::expert_parallel
