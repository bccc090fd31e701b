// The paged KV cache's accounts: which blocks are free, held by sequences (with a count of
// holders), or cached, that is, hold a committed prefix that nobody uses now and that may be found
// again or evicted, least recently used first. It knows block numbers and token ids, never bytes.
// Step thread only; all memory is planned at construction.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace brigade::runtime {

// Prefixes are shared only between equal salts; null is the empty salt. A pointer, so that keeping
// it with a block never copies the text.
using PrefixSalt = std::shared_ptr<const std::string>;

// Names the content of a whole prefix, not a place: equal chains mean equal salts and equal token
// ids from position 0 on. 0 is the empty prefix. Never reused.
using PrefixChain = uint64_t;

class KvBlocks {
 public:
  // `hash_mask` narrows the hash of the prefix table; 0 makes every prefix collide (tests).
  KvBlocks(int num_blocks, int block_size, uint64_t hash_mask = ~uint64_t{0});

  int block_size() const { return block_size_; }
  int total() const { return static_cast<int>(blocks_.size()); }
  int free() const { return static_cast<int>(free_.size()); }
  int cached() const { return cached_; }
  int in_use() const { return total() - free() - cached(); }
  int available() const { return free() + cached(); }
  int64_t evictions() const { return evictions_; }
  // Blocks that `positions` positions need.
  int blocks_for(int positions) const { return (positions + block_size_ - 1) / block_size_; }

  // A block with one holder and no content; -1 when all are held. Evicts a cached prefix when
  // nothing is free.
  int allocate();
  void hold(int block);     // one holder more; the block must be held already
  void release(int block);  // one holder less; broken invariant when nobody holds it
  // One holder and not part of the prefix table: may be written in place.
  bool writable(int block) const;
  int holders(int block) const { return blocks_[block].holders; }

  // Longest committed prefix of `tokens`, whole blocks, at most `max_blocks`; token ids are
  // compared. Appends the blocks to `found`, each held once more; returns its chain.
  PrefixChain match(const PrefixSalt& salt, std::span<const int32_t> tokens, int max_blocks,
                    std::vector<int>* found);
  // Enters a held block with block_size committed `tokens` that follow `parent`. When the same
  // prefix is already there the block stays private. Returns the chain of the longer prefix either
  // way.
  PrefixChain commit(int block, PrefixChain parent, const PrefixSalt& salt,
                     std::span<const int32_t> tokens);
  // Forgets every prefix; held blocks stay held.
  void clear_prefixes();

  // For tests: every block in exactly one state, lists and table agree.
  bool consistent() const;

 private:
  struct Block {
    int holders = 0;
    bool in_table = false;
    PrefixChain chain = 0, parent = 0;
    PrefixSalt salt;                   // first blocks only
    int bucket_next = -1;              // next block of the same bucket
    int lru_prev = -1, lru_next = -1;  // only while cached
    uint64_t hash = 0;
  };

  uint64_t hash_of(PrefixChain parent, const PrefixSalt& salt,
                   std::span<const int32_t> tokens) const;
  int find(uint64_t hash, PrefixChain parent, const PrefixSalt& salt,
           std::span<const int32_t> tokens) const;
  std::span<int32_t> tokens_of(int block);
  std::span<const int32_t> tokens_of(int block) const;
  void remove_from_table(int block);
  void lru_append(int block);  // as most recently used
  void lru_remove(int block);

  const int block_size_;
  const uint64_t hash_mask_;
  std::vector<Block> blocks_;
  std::vector<int32_t> tokens_;  // [blocks, block_size]
  std::vector<int> free_;
  std::vector<int> buckets_;  // first block of a bucket, or -1
  int lru_first_ = -1, lru_last_ = -1;
  int cached_ = 0;
  PrefixChain last_chain_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace brigade::runtime
