// Which steps are recorded, launched, and run op by op, on a scripted stream: what it ran is the
// same in all cases.
#include "runtime/model/step_graphs.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/check.h"
#include "kernels/core/device.h"

namespace brigade::runtime {
namespace {

using Work = std::vector<int>;

struct Script : kernels::Graph::State {
  explicit Script(Work recorded) : work(std::move(recorded)) {}
  const Work work;
};

// An op is a fill with its number.
class ScriptedStream : public kernels::Stream {
 public:
  kernels::Device& device() const override { return *device_; }
  absl::Status copy_to_device(void*, const void*, size_t) override { return no_such_call(); }
  absl::Status copy_to_host(void*, const void*, size_t) override { return no_such_call(); }
  absl::Status copy_on_device(void*, const void*, size_t) override { return no_such_call(); }
  absl::StatusOr<kernels::Event> record(kernels::Waker*) override { return no_such_call(); }
  absl::Status synchronize(absl::Time) override { return no_such_call(); }
  absl::Status fill_bytes(void*, uint8_t op, size_t) override {
    if (broken_) return absl::InternalError("the device failed");
    if (capturing_ && op == refused_op_) return absl::UnimplementedError("refused");
    (capturing_ ? recording_ : ran_).push_back(op);
    return absl::OkStatus();
  }
  absl::Status begin_capture() override {
    if (refuse_begin_) return absl::InternalError("no capture");
    CHECK(!std::exchange(capturing_, true));
    recording_.clear();
    return absl::OkStatus();
  }
  absl::StatusOr<kernels::Graph> end_capture() override {
    CHECK(std::exchange(capturing_, false));
    if (refuse_end_) return absl::ResourceExhaustedError("no memory for a graph");
    return kernels::Graph(std::make_unique<Script>(recording_));
  }
  absl::Status launch(const kernels::Graph& graph) override {
    CHECK(!graph.empty() && !capturing_);
    if (refuse_launch_ || broken_) return absl::InternalError("no launch");
    const Work& work = static_cast<const Script*>(graph.state())->work;
    ran_.insert(ran_.end(), work.begin(), work.end());
    return absl::OkStatus();
  }

  Work take() { return std::exchange(ran_, {}); }
  bool refuse_begin_ = false, refuse_end_ = false, refuse_launch_ = false, broken_ = false;
  int refused_op_ = -1;

 private:
  static absl::Status no_such_call() { return absl::InternalError("not during a segment"); }

  std::unique_ptr<kernels::Device> device_ = *kernels::Device::create(kernels::DeviceKind::kCpu, 1);
  bool capturing_ = false;
  Work recording_, ran_;
};

constexpr int kSegments = 3;

StepShape shape_of(int rows) { return {.rows = rows, .sequences = rows, .max_blocks = 4}; }

class StepGraphsTest : public ::testing::Test {
 protected:
  // Op 10 * segment + rows, twice; how often each segment was enqueued op by op or recorded.
  absl::Status run_step(const StepShape& shape, const ExpertAnswers& answers = {},
                        int segments = kSegments) {
    graphs_.begin(shape);
    enqueued_ = 0;
    for (int segment = 0; segment < segments; ++segment) {
      const auto op = static_cast<uint8_t>(10 * segment + shape.rows);
      const absl::Status status = graphs_.run(segment, answers, [&] {
        ++enqueued_;
        const absl::Status first = stream_.fill_bytes(nullptr, op, 1);
        return first.ok() ? stream_.fill_bytes(nullptr, op, 1) : first;
      });
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // A step that must run everything once, in order, having enqueued so many segments.
  void expect_step(const StepShape& shape, int enqueued, const ExpertAnswers& answers = {}) {
    const absl::Status status = run_step(shape, answers);
    EXPECT_TRUE(status.ok()) << status;
    const int rows = shape.rows;
    EXPECT_EQ(stream_.take(), (Work{rows, rows, 10 + rows, 10 + rows, 20 + rows, 20 + rows}));
    EXPECT_EQ(enqueued_, enqueued);
  }

  ScriptedStream stream_;
  std::vector<std::string> warnings_;
  StepGraphs graphs_{stream_, kSegments, {.warn = [this](const std::string& sentence) {
                       warnings_.push_back(sentence);
                     }}};
  int enqueued_ = 0;
};

TEST_F(StepGraphsTest, RecordsTheSecondTimeAndLaunchesThen) {
  expect_step(shape_of(1), 3);
  EXPECT_EQ(graphs_.counts().recordings, 0);
  for (int again = 0; again < 3; ++again) expect_step(shape_of(1), again == 0 ? 3 : 0);
  EXPECT_EQ(graphs_.counts().recordings, 3);
  EXPECT_EQ(graphs_.counts().launches, 9);
  EXPECT_EQ(graphs_.counts().shapes, 1);
}

TEST_F(StepGraphsTest, EveryNumberOfAShapeCounts) {
  const StepShape shape{
      .rows = 3, .sequences = 2, .max_blocks = 4, .logit_rows = 2, .copied_rows = 1};
  for (int again = 0; again < 3; ++again) expect_step(shape, again == 2 ? 0 : 3);
  for (int StepShape::*number :
       {&StepShape::rows, &StepShape::sequences, &StepShape::max_blocks, &StepShape::logit_rows,
        &StepShape::copied_rows, &StepShape::law_rows}) {
    StepShape other = shape;
    ++(other.*number);
    expect_step(other, 3);
  }
  EXPECT_EQ(graphs_.counts().recordings, 3);
}

TEST_F(StepGraphsTest, LargeStepsRunOpByOp) {
  for (int again = 0; again < 3; ++again) expect_step(shape_of(StepGraphs::kMaxRows + 1), 3);
  EXPECT_EQ(graphs_.counts().shapes, 0);
}

// A step that ends early leaves its later segments for the next time.
TEST_F(StepGraphsTest, SegmentsAreRecordedAsTheyAreReached) {
  expect_step(shape_of(1), 3);
  ASSERT_TRUE(run_step(shape_of(1), {}, 1).ok());
  EXPECT_EQ(stream_.take(), (Work{1, 1}));
  EXPECT_EQ(graphs_.counts().recordings, 1);
  expect_step(shape_of(1), 2);
  expect_step(shape_of(1), 0);
}

TEST_F(StepGraphsTest, AnswersElsewhereAreNotReadFromTheOldPlace) {
  const int here = 0, there = 0;
  const ExpertAnswers first{&here, kernels::DType::kF32}, second{&there, kernels::DType::kF32};
  const ExpertAnswers narrow{&there, kernels::DType::kBF16};
  for (int again = 0; again < 3; ++again) expect_step(shape_of(1), again == 2 ? 0 : 3, first);
  for (const ExpertAnswers& answers : {second, narrow}) {
    expect_step(shape_of(1), 3, answers);  // op by op
    expect_step(shape_of(1), 3, answers);  // recorded
    expect_step(shape_of(1), 0, answers);
  }
  EXPECT_EQ(graphs_.counts().recordings, 9);
}

TEST_F(StepGraphsTest, TheShapeThatRestedLongestMakesRoom) {
  for (int rows = 1; rows <= StepGraphs::kMaxShapes; ++rows) {
    expect_step(shape_of(rows), 3);
    expect_step(shape_of(rows), 3);
  }
  EXPECT_EQ(graphs_.counts().shapes, StepGraphs::kMaxShapes);
  // All were used lately.
  const StepShape late = shape_of(StepGraphs::kMaxShapes + 1);
  for (int again = 0; again < 3; ++again) expect_step(late, 3);
  EXPECT_EQ(graphs_.counts().evictions, 0);
  for (int i = 0; i < StepGraphs::kKeptSteps; ++i) expect_step(shape_of(1 + i % 2), 0);
  for (int again = 0; again < 2; ++again) expect_step(late, again == 0 ? 3 : 0);
  EXPECT_EQ(graphs_.counts().evictions, 1);
  EXPECT_EQ(graphs_.counts().shapes, StepGraphs::kMaxShapes);
  expect_step(shape_of(1), 0);
  expect_step(shape_of(4), 0);
  const int64_t recordings = graphs_.counts().recordings;
  expect_step(shape_of(3), 3);  // the one that went
  EXPECT_EQ(graphs_.counts().recordings, recordings + 3);
  EXPECT_TRUE(warnings_.empty());
}

// Shapes that never come back are not recorded, however many.
TEST_F(StepGraphsTest, WhatIsSeenOnceIsForgotten) {
  for (int blocks = 1; blocks <= 200; ++blocks) {
    expect_step({.rows = 2, .sequences = 2, .max_blocks = blocks}, 3);
  }
  expect_step({.rows = 2, .sequences = 2, .max_blocks = 1}, 3);
  EXPECT_EQ(graphs_.counts().shapes, 0);
}

TEST_F(StepGraphsTest, WhatCannotBeRecordedTurnsGraphsOffAndFailsNoStep) {
  const std::vector<std::pair<void (*)(ScriptedStream&), const char*>> faults = {
      {[](ScriptedStream& s) { s.refuse_begin_ = true; }, "no capture"},
      {[](ScriptedStream& s) { s.refuse_end_ = true; }, "no memory for a graph"},
      {[](ScriptedStream& s) { s.refuse_launch_ = true; }, "no launch"},
      {[](ScriptedStream& s) { s.refused_op_ = 12; }, "refused"},
  };
  for (const auto& [spoil, why] : faults) {
    SCOPED_TRACE(why);
    ScriptedStream stream;
    std::vector<std::string> warnings;
    StepGraphs graphs(stream, kSegments,
                      {.warn = [&](const std::string& text) { warnings.push_back(text); }});
    spoil(stream);
    for (int step = 0; step < 4; ++step) {
      graphs.begin(shape_of(2));
      for (int segment = 0; segment < kSegments; ++segment) {
        const absl::Status status = graphs.run(segment, {}, [&] {
          return stream.fill_bytes(nullptr, static_cast<uint8_t>(10 * segment + 2), 1);
        });
        EXPECT_TRUE(status.ok()) << status;
      }
      EXPECT_EQ(stream.take(), (Work{2, 12, 22}));
    }
    EXPECT_EQ(
        warnings,
        (std::vector<std::string>{std::string("steps run without graphs from now on: ") + why}));
    EXPECT_EQ(graphs.counts().shapes, 0);
  }
}

TEST_F(StepGraphsTest, AFailedDeviceFailsTheStep) {
  for (int again = 0; again < 2; ++again) expect_step(shape_of(1), 3);
  stream_.broken_ = true;
  EXPECT_EQ(run_step(shape_of(1)).message(), "the device failed");
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST(BlockTableWidth, IsRoundedUpWithinItsLimit) {
  EXPECT_EQ(block_table_width(0, 8), 1);
  EXPECT_EQ(block_table_width(1, 8), 1);
  EXPECT_EQ(block_table_width(3, 8), 4);
  EXPECT_EQ(block_table_width(8, 8), 8);
  EXPECT_EQ(block_table_width(5, 7), 7);
  EXPECT_EQ(block_table_width(9, 8), 9) << "whoever checks the batch sees it";
}

}  // namespace
}  // namespace brigade::runtime
