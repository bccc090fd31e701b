// A stand-in for the KV cache that remembers, for every slot, which token at which position after
// which prefix was written there. Reading a slot that is unwritten, stale or of another prefix is
// reported in a sentence. Used by the scripted model and by the scheduler's tests; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace brigade::tests {

// Hash of a prefix that grows by one token; the scripted model's logits are a function of it.
inline constexpr uint64_t kEmptyPrefix = 0x9e3779b97f4a7c15u;
uint64_t extend_prefix(uint64_t prefix, int32_t token);
uint64_t hash_prefix(std::span<const int32_t> tokens);

class ShadowKv {
 public:
  ShadowKv(int num_blocks, int block_size);

  // Writes `token` at `position` of the sequence with this block table, after checking that every
  // earlier position holds one unbroken prefix. Returns the hash of the prefix up to this token, or
  // 0 with *problem set.
  uint64_t write(std::span<const int32_t> block_table, int position, int32_t token,
                 std::string* problem);
  // As write(), with the slot that the caller thinks is right.
  uint64_t write_slot(int64_t slot, std::span<const int32_t> block_table, int position,
                      int32_t token, std::string* problem);
  // Is `token` among positions 0..position?
  bool holds(std::span<const int32_t> block_table, int position, int32_t token) const;
  void copy_block(int from, int to);
  // Makes a slot, or every slot of a block, unreadable.
  void poison_slot(int64_t slot);
  void poison_block(int block);

 private:
  struct Slot {
    int32_t token = -1;
    int32_t position = -1;  // -1: unwritten
    uint64_t prefix = 0;
  };
  const Slot* find(std::span<const int32_t> block_table, int position, std::string* problem) const;

  const int block_size_;
  std::vector<Slot> slots_;
};

}  // namespace brigade::tests
