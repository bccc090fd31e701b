#include "kernels/cpu/expert_ffn.h"

#include "kernels/core/check.h"
#include "kernels/cpu/panel_walk.h"
#include "kernels/cpu/swiglu.h"
#include "kernels/ops/bf16.h"
#include "kernels/ops/path_counters.h"

namespace brigade::kernels::cpu {
namespace {

// One product of one group in the list of pieces of a phase.
struct GroupWork {
  const ExpertGroup* group;
  PanelMatrix matrix;
  WalkPlan plan;
  int first_piece;
};

// Scratch: [groups] GroupWork, then the hidden activations [total][stride] f32. A group with no
// rows needs none, so there are at most `total` groups.
size_t work_bytes(int max_total) {
  return (sizeof(GroupWork) * static_cast<size_t>(max_total) + 63) / 64 * 64;
}
// A power of two would put the same k of all rows into one set of the L1 cache.
int64_t hidden_stride(int64_t max_ffn) { return padded_outputs(max_ffn) + kPanelOutputs; }

struct Scratch {
  GroupWork* work = nullptr;
  float* hidden = nullptr;
  int64_t stride = 0;
};

Scratch carve(const ExpertFfnArgs& args) {
  int max_ffn = 0;
  for (int g = 0; g < args.num_groups; ++g) {
    if (args.groups[g].count > 0) max_ffn = std::max(max_ffn, args.groups[g].weights.ffn);
  }
  auto* bytes = static_cast<uint8_t*>(args.scratch);
  Scratch scratch;
  scratch.work = reinterpret_cast<GroupWork*>(bytes);
  scratch.hidden = reinterpret_cast<float*>(bytes + work_bytes(args.total));
  scratch.stride = hidden_stride(max_ffn);
  return scratch;
}

// The pieces of all experts in one list.
struct Phase {
  GroupWork* work = nullptr;
  int groups = 0;
  int pieces = 0;

  void add(const ExpertGroup& group, const PackedMatrix& weights, int unit_panels, int threads) {
    GroupWork& next = work[groups++];
    next.group = &group;
    next.matrix = panel_matrix(weights, unit_panels);
    next.plan = plan_walk(next.matrix, group.count, threads);
    next.first_piece = pieces;
    pieces += next.plan.pieces();
  }
  const GroupWork& at(int piece) const {
    const GroupWork* after = std::upper_bound(
        work, work + groups, piece,
        [](int wanted, const GroupWork& item) { return wanted < item.first_piece; });
    return *(after - 1);
  }
};

void gate_up_piece(const ExpertFfnArgs& args, const Scratch& scratch, const GroupWork& work,
                   int piece) {
  const int first = work.group->first;
  walk_piece(
      work.matrix, work.plan, piece,
      [&](int row) {
        const int64_t from =
            args.row_index != nullptr ? args.row_index[first + row] : int64_t{first} + row;
        return args.x + from * args.hidden;
      },
      [&](int first_row, int rows, const StepUnits& units, const auto& totals) {
        for (int r = 0; r < rows; ++r) {
          float* hidden = scratch.hidden + int64_t{first + first_row + r} * scratch.stride;
          for (int lane = 0; lane < units.lanes; ++lane) {
            const int at = (r * units.lanes + lane) * kPanelOutputs;
            swiglu(totals[0] + at, totals[1] + at, kPanelOutputs,
                   hidden + units.unit[lane] * kPanelOutputs);
          }
        }
      });
}

// One panel of one answer row, rounded to the wire dtype.
void store_answer(const ExpertFfnArgs& args, int64_t row, int64_t panel, const float* total) {
  const int64_t first = panel * kPanelOutputs;
  const int count = static_cast<int>(std::min<int64_t>(kPanelOutputs, args.hidden - first));
  const int64_t at = row * args.hidden + first;
  if (args.out_dtype == DType::kF32) {
    std::copy(total, total + count, static_cast<float*>(args.out) + at);
    return;
  }
  auto* out = static_cast<uint16_t*>(args.out) + at;
  for (int i = 0; i < count; ++i) out[i] = bf16_from_f32(total[i]);
}

void down_piece(const ExpertFfnArgs& args, const Scratch& scratch, const GroupWork& work,
                int piece) {
  const int first = work.group->first;
  walk_piece(
      work.matrix, work.plan, piece,
      [&](int row) -> const float* {
        return scratch.hidden + int64_t{first + row} * scratch.stride;
      },
      [&](int first_row, int rows, const StepUnits& units, const auto& totals) {
        for (int r = 0; r < rows; ++r) {
          const int i = first + first_row + r;
          const int64_t row = args.out_index != nullptr ? args.out_index[i] : i;
          for (int lane = 0; lane < units.lanes; ++lane) {
            store_answer(args, row, units.unit[lane],
                         totals[0] + (r * units.lanes + lane) * kPanelOutputs);
          }
        }
      });
}

}  // namespace

// Two passes over one list of all experts' pieces: gate, up and their product, then down. The only
// wait between threads is the end of a pass.
void expert_ffn(const ExpertFfnArgs& args, ThreadPool& threads) {
  const Scratch scratch = carve(args);
  Phase gate_up{scratch.work};
  for (int g = 0; g < args.num_groups; ++g) {
    const ExpertGroup& group = args.groups[g];
    if (group.count <= 0) continue;
    count_rows(CountedKernel::kExpertFfn, group.count);
    gate_up.add(group, group.weights.gate_up, 2, threads.num_threads());
  }
  threads.parallel_for(gate_up.pieces, [&](int piece, int) {
    const GroupWork& work = gate_up.at(piece);
    gate_up_piece(args, scratch, work, piece - work.first_piece);
  });
  Phase down{scratch.work};
  for (int g = 0; g < args.num_groups; ++g) {
    const ExpertGroup& group = args.groups[g];
    if (group.count > 0) down.add(group, group.weights.down, 1, threads.num_threads());
  }
  threads.parallel_for(down.pieces, [&](int piece, int) {
    const GroupWork& work = down.at(piece);
    down_piece(args, scratch, work, piece - work.first_piece);
  });
}

size_t expert_ffn_scratch_bytes(int max_total, int max_ffn) {
  return work_bytes(max_total) +
         sizeof(float) * static_cast<size_t>(max_total) * hidden_stride(max_ffn);
}

}  // namespace brigade::kernels::cpu
