// How paged attention divides its scratch memory: a working space for each thread and, for few rows
// over long KV, slots for partial results of segments. Pure arithmetic. Private to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>

namespace brigade::kernels::cpu {

// Rows of one sequence that share each loaded tile of keys and values.
inline constexpr int kRowsPerUnit = 8;
// Positions widened to f32 at a time: with head_dim 128 a tile is 8 KiB and stays in the L1 cache.
inline constexpr int kTilePositions = 16;

constexpr int padded_head_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }

// One thread's arrays. "Query" means one row and one of the heads that share a KV head; there are at
// most `queries`. Vectors are padded with zeros to padded_head_dim.
struct AttentionSpace {
  float* q = nullptr;            // [queries, padded]
  float* acc = nullptr;          // [queries, padded], merged so far
  float* partial = nullptr;      // [queries, padded], of one segment
  float* scores = nullptr;       // [queries, kKvSegment]
  float* tile = nullptr;         // [kTilePositions, padded]
  float* max = nullptr;          // [queries], of acc
  float* sum = nullptr;          // [queries]; 0: nothing merged yet
  float* partial_max = nullptr;  // [queries]
  float* partial_sum = nullptr;  // [queries]
  int32_t* first = nullptr;      // [queries], positions [first, last) are seen
  int32_t* last = nullptr;       // [queries]
};

// Result of one (row, KV head, segment), or what is merged so far of one (row, KV head).
struct AttentionPartial {
  float* max = nullptr;  // [heads of the KV head]
  float* sum = nullptr;  // [heads of the KV head]
  float* acc = nullptr;  // [heads of the KV head, padded]
};

class AttentionScratch {
 public:
  // Enough for any call with at most these sizes.
  static size_t bytes(int max_rows, int heads, int head_dim, int threads);
  // More pieces than threads, so that a thread that wakes late does not hold up the wave.
  static int slots(int threads) { return 8 * threads; }
  // From this many (row, KV head) pairs on, threads need no finer division.
  static int units(int threads) { return 2 * threads; }

  // `queries`, `group`: this call's largest unit and heads per KV head.
  AttentionScratch(void* memory, int queries, int group, int head_dim, int threads);

  AttentionSpace space(int thread) const;
  AttentionPartial slot(int index) const;  // [0, slots)
  AttentionPartial unit(int index) const;  // [0, units)

 private:
  AttentionPartial partial(int index) const;

  float* memory_;
  float* partials_;
  int queries_;
  int group_;
  int padded_;
  int threads_;
};

}  // namespace brigade::kernels::cpu
