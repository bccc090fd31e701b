// Equal slots of device memory, handed out and taken back without a call to the device: on a GPU an
// allocation or a free may stall whatever runs there. Slots are cut from a few large chunks. Those of
// plan() stay until the pool goes; where the plan is exceeded reserve() or take() adds a chunk, the only
// allocation while serving, which is freed once all its slots are back. On `cpu`, where both are cheap and memory
// is wanted back, nothing is planned and every slot is an allocation of its own.
//
// Threads: all calls, any; one mutex, held while a chunk is allocated or freed. The pool does not know
// who reads a slot: whoever gives one back has waited for that, since the next to take it writes there.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/device.h"

namespace brigade::kernels {

// Move-only; given back when it goes. Keeps its pool's memory, and so may outlive the pool, not the
// device. Empty when default-made.
class Slot {
 public:
  Slot() = default;
  Slot(Slot&& other) noexcept;
  Slot& operator=(Slot&& other) noexcept;
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  ~Slot();

  void* data() const { return data_; }
  Device* device() const;  // null when empty

 private:
  friend class SlotPool;
  struct Chunk;
  struct Chunks;
  Slot(std::shared_ptr<Chunks> chunks, Chunk* chunk, void* data);

  std::shared_ptr<Chunks> chunks_;
  Chunk* chunk_ = nullptr;
  void* data_ = nullptr;
};

class SlotPool {
 public:
  // Every slot begins at a multiple of it; on `cpu` of 64.
  static constexpr size_t kAlignment = 256;
  // An unplanned chunk has so many slots, unless they are large or the device has no room.
  static constexpr size_t kChunkSlots = 16;
  static constexpr size_t kChunkBytes = size_t{256} << 20;

  // `slot_bytes` of at least 1; the device outlives the pool and its slots.
  SlotPool(Device& device, size_t slot_bytes);

  // Has at least `slots` slots in all, what is in use included, with one allocation at most, and keeps
  // what it has. On RESOURCE_EXHAUSTED, with the sizes, nothing has changed. On `cpu`: nothing to do.
  absl::Status plan(size_t slots);
  // Has at least `slots` free slots, with one allocation at most, which is not kept once it is empty.
  // Errors and `cpu` as above.
  absl::Status reserve(size_t slots);
  // A slot; its contents are undefined. RESOURCE_EXHAUSTED, with the sizes, when no chunk of even one
  // slot can be had.
  absl::StatusOr<Slot> take();

  size_t slots() const;           // in all
  size_t slots_in_use() const;
  size_t reserved_bytes() const;  // what the device has given

 private:
  const std::shared_ptr<Slot::Chunks> chunks_;
};

}  // namespace brigade::kernels
