// How one product of rows with a packed matrix is cut into pieces for threads, and how one piece
// walks its panels. A unit is what must meet in one thread: one panel, or a gate panel with its up
// panel. Pieces take disjoint units or disjoint rows, never a part of K.
//
// Streams: hardware follows one sequential stream at half of the memory's speed or less. So a piece
// reads `lanes` units side by side, one from each equal part of the matrix, and goes on to the next
// unit of every part: few long streams.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm_tiles.h"

namespace brigade::kernels::cpu {

inline constexpr int kMaxUnitPanels = 2;

// A matrix as the walk sees it.
struct PanelMatrix {
  const uint8_t* data = nullptr;
  const TileSet* tiles = nullptr;
  size_t panel_bytes = 0;
  int64_t k = 0;
  int64_t units = 0;
  int unit_panels = 1;
};
PanelMatrix panel_matrix(const PackedMatrix& matrix, int unit_panels);

// How rows x units become pieces. Steps [0, part) take `lanes` units each, the last ones single
// units.
struct WalkPlan {
  int rows = 0;
  int row_chunks = 0;  // pieces of a chunk of rows: their activations stay in the L2 cache
  int tiles_per_chunk = 0;
  int lanes = 1;
  int64_t part = 0;  // units of one lane
  int64_t steps = 0;
  int64_t steps_per_piece = 1;
  int pieces_per_chunk = 0;
  int pieces() const { return row_chunks * pieces_per_chunk; }
};
WalkPlan plan_walk(const PanelMatrix& matrix, int rows, int threads);

// Where the walk stands: units side by side.
struct StepUnits {
  int64_t unit[kMaxTilePanels];
  int lanes = 0;
};
StepUnits step_units(const WalkPlan& plan, int64_t step);

// Sets what tile `tile` of `tiles` fetches while it reads panel `j` of the step's units.
void set_prefetch(const PanelMatrix& matrix, const WalkPlan& plan, const StepUnits& now,
                  const StepUnits* next, int j, int tile, int tiles, TilePrefetch& prefetch);

// Runs one piece. row(i): the f32 row i of the product, [k]. done(first_row, rows, units, totals):
// totals[j] holds panel j of each unit as [rows][units.lanes][16], valid during the call.
template <class RowAt, class Done>
void walk_piece(const PanelMatrix& matrix, const WalkPlan& plan, int piece, const RowAt& row,
                const Done& done) {
  alignas(64) float totals[kMaxUnitPanels][kMaxTileRows * kMaxTilePanels * kPanelOutputs];
  const int chunk = piece / plan.pieces_per_chunk;
  const int64_t chunk_begin = int64_t{plan.rows} * chunk / plan.row_chunks;
  const int64_t chunk_end = int64_t{plan.rows} * (chunk + 1) / plan.row_chunks;
  const int64_t first_step = piece % plan.pieces_per_chunk * plan.steps_per_piece;
  const int64_t last_step = std::min(plan.steps, first_step + plan.steps_per_piece);
  for (int64_t step = first_step; step < last_step; ++step) {
    const StepUnits units = step_units(plan, step);
    const StepUnits next = step_units(plan, std::min(step + 1, last_step - 1));
    for (int t = 0; t < plan.tiles_per_chunk; ++t) {
      const int64_t begin = chunk_begin + (chunk_end - chunk_begin) * t / plan.tiles_per_chunk;
      const int64_t end = chunk_begin + (chunk_end - chunk_begin) * (t + 1) / plan.tiles_per_chunk;
      const int rows = static_cast<int>(end - begin);
      TileArgs args;
      args.k = matrix.k;
      for (int r = 0; r < rows; ++r) args.rows[r] = row(static_cast<int>(begin) + r);
      for (int j = 0; j < matrix.unit_panels; ++j) {
        for (int lane = 0; lane < units.lanes; ++lane) {
          args.panels[lane] =
              matrix.data + (units.unit[lane] * matrix.unit_panels + j) * matrix.panel_bytes;
        }
        args.totals = totals[j];
        set_prefetch(matrix, plan, units, step + 1 < last_step ? &next : nullptr, j, t,
                     plan.tiles_per_chunk, args.prefetch);
        matrix.tiles->tiles[rows][units.lanes](args);
      }
      done(static_cast<int>(begin), rows, units, totals);
    }
  }
}

}  // namespace brigade::kernels::cpu
