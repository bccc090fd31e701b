#include "kernels/cpu/matmul.h"

#include "kernels/cpu/panel_walk.h"
#include "kernels/ops/path_counters.h"

namespace brigade::kernels::cpu {
namespace {

// The 16 outputs of one panel of one row: bias, then the addition to what y held.
void store_panel(const MatmulArgs& args, int row, int64_t panel, const float* total) {
  const int64_t first = panel * kPanelOutputs;
  const int count =
      static_cast<int>(std::min<int64_t>(kPanelOutputs, args.weights.outputs - first));
  float* y = args.y + row * args.y_stride + first;
  for (int i = 0; i < count; ++i) {
    float value = total[i];
    if (args.bias != nullptr) value += args.bias[first + i];
    y[i] = args.accumulate ? y[i] + value : value;
  }
}

}  // namespace

void matmul(const MatmulArgs& args, ThreadPool& threads) {
  count_rows(CountedKernel::kMatmul, args.rows);
  const PanelMatrix matrix = panel_matrix(args.weights, 1);
  const WalkPlan plan = plan_walk(matrix, args.rows, threads.num_threads());
  threads.parallel_for(plan.pieces(), [&](int piece, int) {
    walk_piece(
        matrix, plan, piece, [&](int row) { return args.x + row * args.x_stride; },
        [&](int first_row, int rows, const StepUnits& units, const auto& totals) {
          for (int r = 0; r < rows; ++r) {
            for (int lane = 0; lane < units.lanes; ++lane) {
              store_panel(args, first_row + r, units.unit[lane],
                          totals[0] + (r * units.lanes + lane) * kPanelOutputs);
            }
          }
        });
  });
}

}  // namespace brigade::kernels::cpu
