// Answers of one layer that arrive in device memory. The progress thread notes which rows of a frame
// belong to which slot; the step thread enqueues one copy a run of rows into a buffer in order of
// arrival and gives the frame back behind it, and puts all rows into their slots with one gather at
// the end. No host code reads a row. No allocation after create().
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/core/dtype.h"
#include "kernels/core/host_buffer.h"

namespace brigade::expert_parallel {

class WorkerLinks;

class DeviceAnswers {
 public:
  // INVALID_ARGUMENT for rows that are no whole number of 4 bytes.
  absl::Status plan(kernels::Device& device, int max_slots, int hidden, kernels::DType dtype);

  // Step thread; nothing of the layer before is left.
  void begin();

  // Progress thread, for each frame: its rows as they are taken. A frame of which nothing was taken
  // is not kept. Holds the mutex from open_frame() to close_frame().
  void open_frame(uint64_t receipt, const std::byte* rows);
  void add(uint32_t row, uint32_t slot);
  void close_frame(bool kept);

  // Step thread. Enqueues the copies of all kept frames and gives these back to the links, also when
  // a copy cannot be enqueued. False: there was none.
  absl::StatusOr<bool> collect(kernels::Stream& stream, WorkerLinks& links);
  // Gives kept frames back without looking.
  void drop(WorkerLinks& links);
  // Enqueues: rows of slots [first, first + count) to `to`. All must have been collected; the slots'
  // positions are read by the stream until the next begin().
  absl::Status scatter(kernels::Stream& stream, int first, int count, void* to);

 private:
  struct Run {
    const std::byte* rows;
    int arrival;
    int count;
  };
  struct Kept {
    uint64_t receipt;
    size_t runs_end;
  };

  size_t row_bytes_ = 0;
  kernels::Buffer arrivals_;            // [max_slots, row_bytes_] in order of arrival
  kernels::Buffer position_on_device_;  // [max_slots]
  std::mutex mutex_;                    // guards what follows
  kernels::HostBuffer positions_;       // i32 by slot: index into arrivals_
  std::vector<Run> runs_;
  std::vector<Kept> kept_;
  int next_arrival_ = 0;
  // The frame that is open; progress thread.
  uint64_t receipt_ = 0;
  const std::byte* rows_ = nullptr;
  size_t first_run_ = 0;
};

}  // namespace brigade::expert_parallel
