// One microbatch's trip to the experts and back, layer by layer: dispatch, compute or wait, answers
// in slots. Nothing here waits: begin() starts, poll() says whether every slot has its answer. The
// layer's input rows stay untouched until then, so rows can be sent again when a worker is lost.
// Used by the step thread; one exchange object per microbatch, planned at start.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/core/dtype.h"
#include "kernels/core/waker.h"

namespace brigade::expert_parallel {

struct LayerRows {
  int moe_layer = 0;                 // index among the MoE layers
  const float* x = nullptr;          // device [rows, hidden], normed input of the layer
  const int32_t* experts = nullptr;  // host [rows, top_k], the router's choice
  int rows = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Starts a layer. x and experts must stay unchanged until poll() has said true; the waker, if
  // given, must outlive the exchange.
  virtual absl::Status begin(kernels::Stream& stream, const LayerRows& layer,
                             kernels::Waker* waker) = 0;
  // True when all rows * top_k answers are there (or ordered before the stream's next op).
  virtual absl::StatusOr<bool> poll() = 0;
  // Device [rows * top_k, hidden] of answer_dtype(), slot = row * top_k + k, unweighted. Valid
  // until the next begin().
  virtual const void* answers() const = 0;
  virtual kernels::DType answer_dtype() const = 0;
  // After poll() said true: rows (ascending) that lack an answer because nobody holds one of their
  // experts. Their missing answers are NaN; the caller leaves these rows uncommitted and computes
  // them again later. Empty while every expert has a holder.
  virtual std::span<const int32_t> parked_rows() const { return {}; }
  // Another number whenever parked rows may have found a holder, also between layers and steps.
  // Whoever publishes such a change afterwards wakes the waker of the last begin(). A hint only:
  // parked rows are tried again after a while anyway.
  virtual uint64_t view_version() const { return 0; }
  // Who computes an expert, as of the last layer that was begun: 0 the coordinator, r + 1 rank r,
  // -1 nobody. Another holders_version() whenever that may have changed.
  virtual int32_t holder_of(int /*moe_layer*/, int32_t /*expert*/) const { return 0; }
  virtual uint64_t holders_version() const { return 0; }
};

}  // namespace brigade::expert_parallel
