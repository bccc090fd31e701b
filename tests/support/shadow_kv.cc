#include "tests/support/shadow_kv.h"

#include <algorithm>

namespace brigade::tests {

uint64_t extend_prefix(uint64_t prefix, int32_t token) {
  uint64_t x = prefix ^ (static_cast<uint64_t>(static_cast<uint32_t>(token)) + 0x632be59bd9b4e019u);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return x == 0 ? 1 : x;
}

uint64_t hash_prefix(std::span<const int32_t> tokens) {
  uint64_t prefix = kEmptyPrefix;
  for (const int32_t token : tokens) prefix = extend_prefix(prefix, token);
  return prefix;
}

ShadowKv::ShadowKv(int num_blocks, int block_size)
    : block_size_(block_size), slots_(static_cast<size_t>(num_blocks) * block_size) {}

const ShadowKv::Slot* ShadowKv::find(std::span<const int32_t> block_table, int position,
                                     std::string* problem) const {
  const size_t index = static_cast<size_t>(position / block_size_);
  const int block = index < block_table.size() ? block_table[index] : -1;
  const int64_t slot = int64_t{block} * block_size_ + position % block_size_;
  if (block < 0 || slot >= static_cast<int64_t>(slots_.size())) {
    *problem = "position " + std::to_string(position) + " has no block";
    return nullptr;
  }
  return &slots_[static_cast<size_t>(slot)];
}

uint64_t ShadowKv::write(std::span<const int32_t> block_table, int position, int32_t token,
                         std::string* problem) {
  const size_t index = static_cast<size_t>(position / block_size_);
  const int64_t block = index < block_table.size() ? block_table[index] : -1;
  return write_slot(block * block_size_ + position % block_size_, block_table, position, token,
                    problem);
}

uint64_t ShadowKv::write_slot(int64_t slot, std::span<const int32_t> block_table, int position,
                              int32_t token, std::string* problem) {
  uint64_t prefix = kEmptyPrefix;
  for (int p = 0; p < position; ++p) {
    const Slot* earlier = find(block_table, p, problem);
    if (earlier == nullptr) return 0;
    prefix = extend_prefix(prefix, earlier->token);
    if (earlier->position == p && earlier->prefix == prefix) continue;
    *problem = "position " + std::to_string(position) + " reads position " + std::to_string(p) +
               ", whose slot " +
               (earlier->position < 0
                    ? "is unwritten"
                    : "holds position " + std::to_string(earlier->position) + " or another prefix");
    return 0;
  }
  const Slot* own = find(block_table, position, problem);
  if (own == nullptr) return 0;
  if (own != slots_.data() + slot) {
    *problem = "position " + std::to_string(position) + " is written to slot " +
               std::to_string(slot) + ", which is not in its block table";
    return 0;
  }
  prefix = extend_prefix(prefix, token);
  slots_[static_cast<size_t>(slot)] = {token, position, prefix};
  return prefix;
}

bool ShadowKv::holds(std::span<const int32_t> block_table, int position, int32_t token) const {
  std::string problem;
  for (int p = 0; p <= position && token >= 0; ++p) {
    const Slot* slot = find(block_table, p, &problem);
    if (slot != nullptr && slot->token == token) return true;
  }
  return false;
}

void ShadowKv::copy_block(int from, int to) {
  std::copy_n(slots_.begin() + int64_t{from} * block_size_, block_size_,
              slots_.begin() + int64_t{to} * block_size_);
}

void ShadowKv::poison_slot(int64_t slot) { slots_[static_cast<size_t>(slot)] = Slot{}; }

void ShadowKv::poison_block(int block) {
  std::fill_n(slots_.begin() + int64_t{block} * block_size_, block_size_, Slot{});
}

}  // namespace brigade::tests
