// The unit of the data plane: one frame = header | index | rows, little-endian, at most 512 KiB. A
// dispatch carries hidden rows, each once, and for each row the experts to run and the slots to
// answer into; an answer carries one row per slot; a decline carries the slots that a worker will
// not compute. Nothing of a frame is used before every size, id and the checksum have been checked.
// A frame with its rows apart, in device memory, says so in its header; its checksum covers header
// and index. Pure functions; a FrameView points into the caller's buffer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "kernels/core/dtype.h"

namespace brigade::expert_parallel {

inline constexpr size_t kMaxFrameBytes = 512 * 1024;
inline constexpr size_t kFrameHeaderBytes = 128;
// Answers leave in pieces of so many bytes of rows, so that one is checked and copied while the
// next is on its way.
inline constexpr size_t kAnswerFrameRowBytes = 128 * 1024;
inline constexpr uint16_t kFrameVersion = 1;
inline constexpr size_t kFrameAlignment = 64;  // of the buffer, and of the rows inside it

enum class FrameKind : uint8_t { kDispatch = 1, kAnswer = 2, kDecline = 3 };

// Who speaks: 128 secret bits that the two sides got over the control stream.
struct Session {
  uint64_t coordinator_id = 0;
  std::array<uint8_t, 16> secret{};
};

// A rank slot and the life of the process that holds it. The coordinator's slot is -1.
struct Party {
  int32_t slot = -1;
  uint64_t incarnation = 0;
  bool operator==(const Party&) const = default;
};

struct FrameHeader {
  FrameKind kind = FrameKind::kDispatch;
  kernels::DType dtype = kernels::DType::kF32;  // of the rows
  uint32_t hidden = 0;                          // elements of a row
  Session session;
  Party receiver, sender;
  uint64_t placement_version = 0;
  uint64_t step = 0;  // with microbatch: names one exchange of this coordinator for ever
  uint32_t microbatch = 0;
  uint32_t layer = 0;                         // index among the MoE layers
  uint32_t frame_index = 0, frame_count = 1;  // of this exchange and receiver; any order of arrival
  uint32_t row_count = 0;
  uint32_t entry_count = 0;  // dispatch: (row, expert, slot) triples; answer and decline: slots
};

// One term of a dispatch: run `expert` on row `row` of this frame, answer into `slot`.
struct FrameEntry {
  uint16_t row = 0;
  uint16_t expert = 0;
  uint32_t slot = 0;
};
static_assert(sizeof(FrameEntry) == 8);

// What a receiver accepts; everything else is malformed.
struct FrameLimits {
  int hidden = 0;
  int experts = 0;
  int moe_layers = 0;
  int max_slots = 0;  // slot ids lie below
  kernels::DType dispatch_dtype = kernels::DType::kF32;
  kernels::DType answer_dtype = kernels::DType::kF32;
};

// Why a frame was not taken. Ordered as the checks run.
enum class Refusal : uint8_t {
  kNone,
  kMalformed,         // sizes, kinds or ids that no honest sender writes
  kDamaged,           // checksum
  kStranger,          // another coordinator id or secret
  kWrongSlot,         // meant for, or sent by, another rank slot
  kStaleIncarnation,  // of an earlier life of that slot
  kCount,
};
const char* refusal_name(Refusal refusal);

// Counts by reason; any thread.
class RefusalCounts {
 public:
  void add(Refusal refusal) {
    counts_[static_cast<size_t>(refusal)].fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t of(Refusal refusal) const {
    return counts_[static_cast<size_t>(refusal)].load(std::memory_order_relaxed);
  }
  uint64_t total() const;

 private:
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Refusal::kCount)> counts_{};
};

// A checked frame inside its buffer.
struct FrameView {
  FrameHeader header;
  const std::byte* index = nullptr;
  const std::byte* rows = nullptr;  // [row_count, hidden] of header.dtype; aligned as the buffer is
  bool rows_on_device = false;

  FrameEntry entry(uint32_t i) const;  // dispatch
  uint32_t slot(uint32_t i) const;     // answer, decline
};

// Layout. The index starts behind the header and is padded so that rows are aligned.
size_t frame_index_bytes(FrameKind kind, uint32_t entry_count);
inline std::byte* frame_index(std::byte* frame) { return frame + kFrameHeaderBytes; }
inline std::byte* frame_rows(std::byte* frame, FrameKind kind, uint32_t entry_count) {
  return frame + kFrameHeaderBytes + frame_index_bytes(kind, entry_count);
}
size_t frame_bytes(const FrameHeader& header);
inline void put_entry(std::byte* index, uint32_t i, const FrameEntry& entry) {
  std::memcpy(index + size_t(i) * sizeof(entry), &entry, sizeof(entry));
}
inline void put_slot(std::byte* index, uint32_t i, uint32_t slot) {
  std::memcpy(index + size_t(i) * sizeof(slot), &slot, sizeof(slot));
}

// Writes header, padding and checksum around an index and rows that are in place; returns the
// frame's bytes. The caller's counts must fit kMaxFrameBytes and the buffer.
size_t seal_frame(const FrameHeader& header, std::byte* frame);

// The same for a frame whose rows are apart, in device memory: header and index alone, whose bytes
// it returns.
size_t seal_head(const FrameHeader& header, std::byte* head);

// Structure, ids and checksum. On kNone `view` is filled; else it must not be used.
Refusal parse_frame(std::span<const std::byte> bytes, const FrameLimits& limits, FrameView* view);
Refusal parse_device_frame(std::span<const std::byte> head, std::span<const std::byte> device_rows,
                           const FrameLimits& limits, FrameView* view);

// Where a head and its rows do not fit or were changed, the order of both is in doubt.
inline bool is_broken(Refusal refusal) {
  return refusal == Refusal::kMalformed || refusal == Refusal::kDamaged;
}
// "a head of step 7, microbatch 0, layer 3: 5 rows, 7 entries", unchecked, for messages.
std::string describe_head(std::span<const std::byte> head);

// Whether a frame belongs to this session, was meant for `self` and comes from `peer`.
Refusal check_parties(const FrameHeader& header, const Session& session, const Party& self,
                      const Party& peer);

}  // namespace brigade::expert_parallel
