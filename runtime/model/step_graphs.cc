#include "runtime/model/step_graphs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::runtime {

StepGraphs::StepGraphs(kernels::Stream& stream, int segments, StepGraphOptions options)
    : stream_(stream),
      segments_(static_cast<size_t>(segments)),
      options_(std::move(options)) {
  recorded_.reserve(kMaxShapes);
}

void StepGraphs::begin(const StepShape& shape) {
  ++steps_;
  current_ = nullptr;
  if (off_) {
    recorded_.clear();
    counts_.shapes = 0;
    return;
  }
  if (shape.rows > kMaxRows) return;
  current_ = find(shape);
  if (current_ == nullptr && was_seen(shape)) current_ = make_room(shape);
  if (current_ != nullptr) current_->last_used = steps_;
}

StepGraphs::Recorded* StepGraphs::find(const StepShape& shape) {
  const auto found = std::find_if(recorded_.begin(), recorded_.end(),
                                  [&](const Recorded& held) { return held.shape == shape; });
  return found == recorded_.end() ? nullptr : &*found;
}

// Also notes it.
bool StepGraphs::was_seen(const StepShape& shape) {
  if (std::find(seen_.begin(), seen_.end(), shape) != seen_.end()) return true;
  seen_[next_seen_] = shape;
  next_seen_ = (next_seen_ + 1) % seen_.size();
  return false;
}

StepGraphs::Recorded* StepGraphs::make_room(const StepShape& shape) {
  Recorded* place = nullptr;
  if (recorded_.size() < kMaxShapes) {
    place = &recorded_.emplace_back();
    ++counts_.shapes;
  } else {
    place = &*std::min_element(
        recorded_.begin(), recorded_.end(),
        [](const Recorded& a, const Recorded& b) { return a.last_used < b.last_used; });
    if (steps_ - place->last_used < kKeptSteps) return nullptr;
    ++counts_.evictions;
  }
  place->shape = shape;
  place->pieces.clear();
  place->pieces.resize(segments_);
  return place;
}

absl::Status StepGraphs::run(int segment, const ExpertAnswers& answers, Enqueue enqueue) {
  if (current_ == nullptr) return enqueue();
  CHECK(segment >= 0 && static_cast<size_t>(segment) < segments_);
  Piece& piece = current_->pieces[static_cast<size_t>(segment)];
  if (!piece.graph.empty() && piece.answers != answers) {
    // The last launch has ended with its step. Recorded again when the shape comes back.
    piece = {};
    return enqueue();
  }
  if (piece.graph.empty()) {
    absl::StatusOr<kernels::Graph> graph = record(enqueue);
    if (!graph.ok()) {
      turn_off(graph.status());
      return enqueue();
    }
    piece = {*std::move(graph), answers};
    ++counts_.recordings;
  }
  const absl::Status launched = stream_.launch(piece.graph);
  if (launched.ok()) {
    ++counts_.launches;
    return launched;
  }
  // What was refused does not run. A device that failed refuses the ops too.
  turn_off(launched);
  return enqueue();
}

absl::StatusOr<kernels::Graph> StepGraphs::record(Enqueue enqueue) {
  RETURN_IF_ERROR(stream_.begin_capture());
  const absl::Status enqueued = enqueue();
  absl::StatusOr<kernels::Graph> graph = stream_.end_capture();
  RETURN_IF_ERROR(enqueued);
  return graph;
}

// Graphs of the step in progress may still run: the next one frees them.
void StepGraphs::turn_off(const absl::Status& why) {
  current_ = nullptr;
  off_ = true;
  if (!options_.warn) return;
  options_.warn(absl::StrCat("steps run without graphs from now on: ", std::string(why.message())));
}

}  // namespace brigade::runtime
