// A recorded run of ops and copies on the device, launched as one. It depends on everything that
// was enqueued while it was recorded: addresses, shapes and scalar arguments. Move-only; freed by
// any thread once no stream runs it.
#pragma once

#include <memory>
#include <utility>

namespace brigade::kernels {

class Graph {
 public:
  struct State {
    virtual ~State() = default;
  };

  Graph() = default;  // empty: may not be launched
  explicit Graph(std::unique_ptr<State> state) : state_(std::move(state)) {}
  bool empty() const { return state_ == nullptr; }
  State* state() const { return state_.get(); }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace brigade::kernels
