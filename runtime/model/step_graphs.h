// Segments of a step as graphs of the device: what a step enqueues between two waits is the same
// whenever its shape is, so it is recorded once and then launched as one piece of work in place of
// a dozen. A recording that fails turns graphs off for good and costs no step: a stream that
// records runs nothing, so the segment is enqueued as usual. Of one stream; the step thread.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/core/graph.h"
#include "runtime/model/step_shape.h"

namespace brigade::runtime {

struct StepGraphOptions {
  bool on = true;  // where the device can
  // Told once, should they be turned off, and why.
  std::function<void(const std::string& sentence)> warn;
};

// A shape is recorded when it is seen for the second time: kernels are loaded by then, and what
// never comes back is not recorded. Where shapes change too often for recording to pay, steps run
// as without graphs.
class StepGraphs {
 public:
  // In larger steps the kernels take longer than their launches.
  static constexpr int kMaxRows = 64;
  static constexpr int kMaxShapes = 32;  // held at most
  // A shape that was used within so many steps makes room for no other.
  static constexpr int kKeptSteps = 256;

  // `segments` of each step. The stream records graphs and outlives this.
  StepGraphs(kernels::Stream& stream, int segments, StepGraphOptions options);
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // A step begins; all work of the last one has ended, so that graphs may be freed.
  void begin(const StepShape& shape);

  // Runs a segment of that step: launches its graph, or calls `enqueue`, once or twice. All that
  // `enqueue` puts on the stream is determined by the shape, the segment and `answers`; it changes
  // nothing else and does not use the stream in other ways.
  using Enqueue = absl::FunctionRef<absl::Status()>;
  absl::Status run(int segment, const ExpertAnswers& answers, Enqueue enqueue);

  const StepGraphCounts& counts() const { return counts_; }

 private:
  struct Piece {
    kernels::Graph graph;   // empty: not recorded
    ExpertAnswers answers;  // baked into it
  };
  struct Recorded {
    StepShape shape;
    int64_t last_used = 0;  // step
    std::vector<Piece> pieces;
  };

  Recorded* find(const StepShape& shape);
  bool was_seen(const StepShape& shape);
  Recorded* make_room(const StepShape& shape);
  absl::StatusOr<kernels::Graph> record(Enqueue enqueue);
  void turn_off(const absl::Status& why);

  kernels::Stream& stream_;
  const size_t segments_;
  const StepGraphOptions options_;
  std::vector<Recorded> recorded_;
  Recorded* current_ = nullptr;  // of the step in progress; null: it runs without graphs
  int64_t steps_ = 0;
  // Shapes that ran once, the oldest is overwritten.
  std::array<StepShape, 2 * kMaxShapes> seen_;
  size_t next_seen_ = 0;
  StepGraphCounts counts_;
  bool off_ = false;
};

}  // namespace brigade::runtime
