#include "kernels/core/slot_pool.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::kernels {
namespace {

// From slot to slot. On `cpu` each is an allocation of its own, which is aligned anyway.
size_t distance(const Device& device, size_t slot_bytes) {
  if (device.kind() == DeviceKind::kCpu) return slot_bytes;
  return (slot_bytes + SlotPool::kAlignment - 1) / SlotPool::kAlignment * SlotPool::kAlignment;
}

}  // namespace

struct Slot::Chunk {
  Buffer memory;
  size_t slots = 0;
  bool planned = false;
  std::vector<void*> free;  // the one given back last is handed out first: it shows who still reads it
};

struct Slot::Chunks {
  Device& device;
  const size_t slot_bytes;  // from slot to slot
  std::mutex mutex;
  // Guarded by mutex:
  std::list<Chunk> chunks;
  size_t slots = 0, in_use = 0;

  Chunks(Device& on, size_t bytes) : device(on), slot_bytes(bytes) {}

  // Under the mutex.
  absl::StatusOr<Chunk*> add(size_t count, bool planned) {
    ASSIGN_OR_RETURN(Buffer memory, Buffer::allocate(device, count * slot_bytes));
    Chunk& chunk = chunks.emplace_back();
    chunk.memory = std::move(memory);
    chunk.slots = count;
    chunk.planned = planned;
    chunk.free.reserve(count);
    for (size_t i = count; i > 0; --i) {
      chunk.free.push_back(chunk.memory.as<std::byte>() + (i - 1) * slot_bytes);
    }
    slots += count;
    return &chunk;
  }

  // Under the mutex. As large as the device allows.
  absl::StatusOr<Chunk*> grow() {
    size_t count = 1;
    if (device.kind() != DeviceKind::kCpu) {
      count = std::clamp<size_t>(SlotPool::kChunkBytes / slot_bytes, 1, SlotPool::kChunkSlots);
    }
    while (true) {
      absl::StatusOr<Chunk*> chunk = add(count, /*planned=*/false);
      if (chunk.ok() || count == 1) return chunk;
      count /= 2;
    }
  }

  void give_back(Chunk* chunk, void* data) {
    std::lock_guard<std::mutex> lock(mutex);
    chunk->free.push_back(data);
    --in_use;
    if (chunk->planned || chunk->free.size() < chunk->slots) return;
    slots -= chunk->slots;
    chunks.remove_if([chunk](const Chunk& other) { return &other == chunk; });
  }
};

Slot::Slot(std::shared_ptr<Chunks> chunks, Chunk* chunk, void* data)
    : chunks_(std::move(chunks)), chunk_(chunk), data_(data) {}

Slot::Slot(Slot&& other) noexcept
    : chunks_(std::move(other.chunks_)),
      chunk_(std::exchange(other.chunk_, nullptr)),
      data_(std::exchange(other.data_, nullptr)) {}

Slot& Slot::operator=(Slot&& other) noexcept {
  if (this != &other) {
    const Slot before(std::move(*this));
    chunks_ = std::move(other.chunks_);
    chunk_ = std::exchange(other.chunk_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
  }
  return *this;
}

Slot::~Slot() {
  if (data_ != nullptr) chunks_->give_back(chunk_, data_);
}

Device* Slot::device() const { return chunks_ == nullptr ? nullptr : &chunks_->device; }

SlotPool::SlotPool(Device& device, size_t slot_bytes)
    : chunks_(std::make_shared<Slot::Chunks>(device, distance(device, slot_bytes))) {
  CHECK(slot_bytes > 0);
}

absl::Status SlotPool::plan(size_t slots) {
  if (chunks_->device.kind() == DeviceKind::kCpu) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(chunks_->mutex);
  if (slots > chunks_->slots) {
    RETURN_IF_ERROR(chunks_->add(slots - chunks_->slots, /*planned=*/true).status());
  }
  for (Slot::Chunk& chunk : chunks_->chunks) chunk.planned = true;
  return absl::OkStatus();
}

absl::Status SlotPool::reserve(size_t slots) {
  if (chunks_->device.kind() == DeviceKind::kCpu) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(chunks_->mutex);
  const size_t free = chunks_->slots - chunks_->in_use;
  if (slots <= free) return absl::OkStatus();
  return chunks_->add(slots - free, /*planned=*/false).status();
}

absl::StatusOr<Slot> SlotPool::take() {
  std::lock_guard<std::mutex> lock(chunks_->mutex);
  Slot::Chunk* from = nullptr;
  for (Slot::Chunk& chunk : chunks_->chunks) {
    if (chunk.free.empty()) continue;
    from = &chunk;
    break;
  }
  if (from == nullptr) {
    ASSIGN_OR_RETURN(from, chunks_->grow());
  }
  void* const data = from->free.back();
  from->free.pop_back();
  ++chunks_->in_use;
  return Slot(chunks_, from, data);
}

size_t SlotPool::slots() const {
  std::lock_guard<std::mutex> lock(chunks_->mutex);
  return chunks_->slots;
}

size_t SlotPool::slots_in_use() const {
  std::lock_guard<std::mutex> lock(chunks_->mutex);
  return chunks_->in_use;
}

size_t SlotPool::reserved_bytes() const {
  std::lock_guard<std::mutex> lock(chunks_->mutex);
  return chunks_->slots * chunks_->slot_bytes;
}

}  // namespace brigade::kernels
