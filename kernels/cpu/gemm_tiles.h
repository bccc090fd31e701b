// Register tiles of the weight-streaming products: some rows times some panels of 16 outputs, all
// of K. A tile only chooses how many of the sums below run side by side, so its shape and the
// instruction set cannot show in the result:
//   total = sum over blocks of kBlockK k, in order, of one FMA chain over k (each chain starts at
//   0).
// Pure functions over caller memory; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/packed_matrix.h"

namespace brigade::kernels::cpu {

inline constexpr int kBlockK = 256;       // length of one FMA chain; part of the numerics
inline constexpr int kMaxTileRows = 12;   // rows of the tallest tile of any instruction set
inline constexpr int kMaxTilePanels = 4;  // panels side by side

// Lines that a tile fetches while it computes, so that what is needed next is close by then. Per
// panel of the tile: `lines` cache lines from `from[p]` on with every kTileStep steps of k.
struct TilePrefetch {
  const uint8_t* from[kMaxTilePanels] = {};
  int lines = 0;
};
inline constexpr int kTileStep = 8;

struct TileArgs {
  const uint8_t* panels[kMaxTilePanels];  // first byte of each panel
  const float* rows[kMaxTileRows];        // [k] each
  int64_t k = 0;
  float* totals = nullptr;  // [rows of the tile][panels of the tile][16], 64-byte aligned
  TilePrefetch prefetch;
};
using Tile = void (*)(const TileArgs&);

// The tiles of one weight format on one instruction set.
struct TileSet {
  int max_rows = 0;                  // of one tile
  int lanes[kMaxTileRows + 1] = {};  // most panels side by side for a number of rows, 1 to 4
  int lanes_of_several = 1;          // when several tiles follow each other on the same panels
  // [rows][panels], null where it does not exist. One panel: always. lanes_of_several: from half of
  // max_rows on, which is the least that an even cut into tiles leaves.
  Tile tiles[kMaxTileRows + 1][kMaxTilePanels + 1] = {};
};

// For the instruction set that Highway has chosen.
const TileSet& tile_set(WeightFormat format);
const TileSet& f32_tiles();
const TileSet& bf16_tiles();
const TileSet& f16_tiles();

}  // namespace brigade::kernels::cpu
