#include "runtime/scheduler/kv_blocks.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

bool same_salt(const PrefixSalt& a, const PrefixSalt& b) {
  const bool a_empty = a == nullptr || a->empty();
  const bool b_empty = b == nullptr || b->empty();
  if (a_empty || b_empty) return a_empty == b_empty;
  return *a == *b;
}

}  // namespace

KvBlocks::KvBlocks(int num_blocks, int block_size, uint64_t hash_mask)
    : block_size_(block_size), hash_mask_(hash_mask), blocks_(num_blocks) {
  CHECK(num_blocks > 0);
  CHECK(block_size > 0);
  tokens_.resize(static_cast<size_t>(num_blocks) * block_size);
  buckets_.assign(std::bit_ceil(static_cast<size_t>(num_blocks) * 2), -1);
  free_.reserve(num_blocks);
  for (int block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

int KvBlocks::allocate() {
  if (free_.empty()) {
    if (lru_first_ < 0) return -1;
    const int victim = lru_first_;
    lru_remove(victim);
    remove_from_table(victim);
    free_.push_back(victim);
    ++evictions_;
  }
  const int block = free_.back();
  free_.pop_back();
  blocks_[block].holders = 1;
  return block;
}

void KvBlocks::hold(int block) {
  CHECK(blocks_[block].holders > 0);
  ++blocks_[block].holders;
}

void KvBlocks::release(int block) {
  CHECK(block >= 0 && block < total());
  CHECK(blocks_[block].holders > 0);
  if (--blocks_[block].holders > 0) return;
  if (blocks_[block].in_table) {
    lru_append(block);
  } else {
    free_.push_back(block);
  }
}

bool KvBlocks::writable(int block) const {
  return blocks_[block].holders == 1 && !blocks_[block].in_table;
}

PrefixChain KvBlocks::match(const PrefixSalt& salt, std::span<const int32_t> tokens, int max_blocks,
                            std::vector<int>* found) {
  PrefixChain chain = 0;
  const int whole = std::min<int>(max_blocks, static_cast<int>(tokens.size()) / block_size_);
  for (int i = 0; i < whole; ++i) {
    const auto part = tokens.subspan(static_cast<size_t>(i) * block_size_, block_size_);
    const int block = find(hash_of(chain, salt, part), chain, salt, part);
    if (block < 0) break;
    if (blocks_[block].holders++ == 0) lru_remove(block);
    found->push_back(block);
    chain = blocks_[block].chain;
  }
  return chain;
}

PrefixChain KvBlocks::commit(int block, PrefixChain parent, const PrefixSalt& salt,
                             std::span<const int32_t> tokens) {
  CHECK(static_cast<int>(tokens.size()) == block_size_);
  Block& entry = blocks_[block];
  CHECK(entry.holders > 0);
  CHECK(!entry.in_table);
  const uint64_t hash = hash_of(parent, salt, tokens);
  if (const int same = find(hash, parent, salt, tokens); same >= 0) return blocks_[same].chain;
  std::copy(tokens.begin(), tokens.end(), tokens_of(block).begin());
  entry.in_table = true;
  entry.hash = hash;
  entry.parent = parent;
  entry.chain = ++last_chain_;
  if (parent == 0) entry.salt = salt;
  int& bucket = buckets_[hash & (buckets_.size() - 1)];
  entry.bucket_next = bucket;
  bucket = block;
  return entry.chain;
}

void KvBlocks::clear_prefixes() {
  while (lru_first_ >= 0) {
    const int block = lru_first_;
    lru_remove(block);
    remove_from_table(block);
    free_.push_back(block);
  }
  for (int block = 0; block < total(); ++block) {
    if (blocks_[block].in_table) remove_from_table(block);
  }
}

uint64_t KvBlocks::hash_of(PrefixChain parent, const PrefixSalt& salt,
                           std::span<const int32_t> tokens) const {
  uint64_t seed = parent;
  if (parent == 0 && salt != nullptr && !salt->empty())
    seed = XXH3_64bits(salt->data(), salt->size());
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), seed) & hash_mask_;
}

int KvBlocks::find(uint64_t hash, PrefixChain parent, const PrefixSalt& salt,
                   std::span<const int32_t> tokens) const {
  for (int block = buckets_[hash & (buckets_.size() - 1)]; block >= 0;
       block = blocks_[block].bucket_next) {
    const Block& entry = blocks_[block];
    if (entry.hash != hash || entry.parent != parent) continue;
    if (parent == 0 && !same_salt(entry.salt, salt)) continue;
    const auto known = tokens_of(block);
    if (std::equal(known.begin(), known.end(), tokens.begin())) return block;
  }
  return -1;
}

std::span<int32_t> KvBlocks::tokens_of(int block) {
  return {tokens_.data() + static_cast<size_t>(block) * block_size_,
          static_cast<size_t>(block_size_)};
}

std::span<const int32_t> KvBlocks::tokens_of(int block) const {
  return {tokens_.data() + static_cast<size_t>(block) * block_size_,
          static_cast<size_t>(block_size_)};
}

void KvBlocks::remove_from_table(int block) {
  Block& entry = blocks_[block];
  int* link = &buckets_[entry.hash & (buckets_.size() - 1)];
  while (*link != block) {
    CHECK(*link >= 0);
    link = &blocks_[*link].bucket_next;
  }
  *link = entry.bucket_next;
  entry.bucket_next = -1;
  entry.in_table = false;
  entry.chain = entry.parent = 0;
  entry.salt.reset();
}

void KvBlocks::lru_append(int block) {
  Block& entry = blocks_[block];
  entry.lru_prev = lru_last_;
  entry.lru_next = -1;
  (lru_last_ >= 0 ? blocks_[lru_last_].lru_next : lru_first_) = block;
  lru_last_ = block;
  ++cached_;
}

void KvBlocks::lru_remove(int block) {
  Block& entry = blocks_[block];
  (entry.lru_prev >= 0 ? blocks_[entry.lru_prev].lru_next : lru_first_) = entry.lru_next;
  (entry.lru_next >= 0 ? blocks_[entry.lru_next].lru_prev : lru_last_) = entry.lru_prev;
  entry.lru_prev = entry.lru_next = -1;
  --cached_;
}

bool KvBlocks::consistent() const {
  std::vector<int> seen(blocks_.size(), 0);
  for (int block : free_) {
    if (blocks_[block].holders != 0 || blocks_[block].in_table) return false;
    ++seen[block];
  }
  int cached = 0;
  for (int block = lru_first_; block >= 0; block = blocks_[block].lru_next, ++cached) {
    if (blocks_[block].holders != 0 || !blocks_[block].in_table) return false;
    ++seen[block];
  }
  if (cached != cached_) return false;
  for (int block = 0; block < total(); ++block) {
    const Block& entry = blocks_[block];
    if (seen[block] != (entry.holders == 0 ? 1 : 0)) return false;
    if (entry.in_table && find(entry.hash, entry.parent, entry.salt, tokens_of(block)) != block) {
      return false;
    }
  }
  return true;
}

}  // namespace brigade::runtime
