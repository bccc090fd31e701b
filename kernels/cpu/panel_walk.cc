#include "kernels/cpu/panel_walk.h"

namespace brigade::kernels::cpu {
namespace {

// Work of a piece in bytes of weights at one row: small enough that two threads end together when
// one of them gets half a core, large enough that a stream runs for 64 KiB.
constexpr int64_t kPieceBytes = 256 << 10;
// The same with several row tiles, where the fetch of the next panels needs several steps a piece.
constexpr int64_t kLargePieceBytes = 1 << 20;
constexpr int kLeastPiecesPerThread = 4;
// From here on a piece is bound by arithmetic and costs as much as rows / kComputeBoundRows reads.
constexpr int kComputeBoundRows = 8;
// Row tiles of a chunk: 96 rows of 2048 f32 fill 768 KiB of the L2 cache.
constexpr int kTilesPerChunk = 8;
// Distance of the prefetch inside a stream, bytes: with three or four streams, and with one or two,
// where several lines must be on their way in each; measured.
constexpr size_t kAheadManyLanes = 1024;
constexpr size_t kAheadFewLanes = 4096;

int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace

PanelMatrix panel_matrix(const PackedMatrix& matrix, int unit_panels) {
  PanelMatrix result;
  result.data = static_cast<const uint8_t*>(matrix.data);
  result.tiles = &tile_set(matrix.format);
  result.panel_bytes = panel_bytes(matrix.format, matrix.k);
  result.k = matrix.k;
  result.units = padded_outputs(matrix.outputs) / kPanelOutputs / unit_panels;
  result.unit_panels = unit_panels;
  return result;
}

WalkPlan plan_walk(const PanelMatrix& matrix, int rows, int threads) {
  WalkPlan plan;
  if (rows <= 0 || matrix.units <= 0) return plan;
  const int max_rows = matrix.tiles->max_rows;
  plan.rows = rows;
  plan.row_chunks = ceil_div(rows, max_rows * kTilesPerChunk);
  const int chunk_rows = ceil_div(rows, plan.row_chunks);
  plan.tiles_per_chunk = ceil_div(chunk_rows, max_rows);
  plan.lanes =
      plan.tiles_per_chunk == 1 ? matrix.tiles->lanes[chunk_rows] : matrix.tiles->lanes_of_several;
  plan.part = matrix.units / plan.lanes;
  plan.steps = plan.part + matrix.units % plan.lanes;
  plan.steps_per_piece = plan.steps;
  if (threads > 1) {
    const int64_t step_work = static_cast<int64_t>(matrix.panel_bytes) * matrix.unit_panels *
                              plan.lanes * std::max(1, chunk_rows / kComputeBoundRows);
    const int64_t wanted = (plan.tiles_per_chunk == 1 ? kPieceBytes : kLargePieceBytes) / step_work;
    const int64_t most = plan.steps * plan.row_chunks / (kLeastPiecesPerThread * threads);
    // Below one piece's work in all, a single piece: waking a thread would cost more.
    if (plan.steps * step_work > kPieceBytes) {
      plan.steps_per_piece = std::clamp<int64_t>(std::min(wanted, most), 1, plan.steps);
    }
  }
  plan.pieces_per_chunk = ceil_div(plan.steps, plan.steps_per_piece);
  return plan;
}

StepUnits step_units(const WalkPlan& plan, int64_t step) {
  StepUnits units;
  if (step >= plan.part) {
    units.lanes = 1;
    units.unit[0] = plan.part * plan.lanes + (step - plan.part);
    return units;
  }
  units.lanes = plan.lanes;
  for (int lane = 0; lane < plan.lanes; ++lane) units.unit[lane] = step + lane * plan.part;
  return units;
}

void set_prefetch(const PanelMatrix& matrix, const WalkPlan& plan, const StepUnits& now,
                  const StepUnits* next, int j, int tile, int tiles, TilePrefetch& prefetch) {
  const int lines_per_step = static_cast<int>(matrix.panel_bytes / matrix.k * kTileStep / 64);
  const StepUnits* from = &now;
  size_t offset = plan.lanes >= 3 ? kAheadManyLanes : kAheadFewLanes;
  prefetch.lines = lines_per_step;
  if (tile > 0) {
    // These panels are in the L2 cache by now: each further tile fetches a share of the next ones.
    prefetch.lines = ceil_div(lines_per_step, tiles - 1);
    from = next;
    offset = matrix.panel_bytes * prefetch.lines * (tile - 1) / lines_per_step;
    if (next == nullptr || next->lanes != now.lanes || offset >= matrix.panel_bytes) {
      prefetch.lines = 0;
      return;
    }
  }
  for (int lane = 0; lane < now.lanes; ++lane) {
    prefetch.from[lane] =
        matrix.data + (from->unit[lane] * matrix.unit_panels + j) * matrix.panel_bytes + offset;
  }
}

}  // namespace brigade::kernels::cpu
