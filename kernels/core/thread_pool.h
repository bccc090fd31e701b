// A fixed set of threads that an owner passes to whoever computes; never a singleton. parallel_for
// hands out small pieces so that a busy core cannot hold everybody up, blocks (never spins) while it
// waits, and allocates nothing. One caller at a time: the thread that owns the device's stream.
#pragma once

#include <memory>

#include "absl/functional/function_ref.h"

namespace brigade::kernels {

class ThreadPool {
 public:
  // `num_threads` counts the calling thread: 1 makes everything run inline.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Runs task(index, thread) for every index in [0, num_tasks), thread in [0, num_threads()).
  // Returns when all have ended. Which thread runs which index is not fixed; results must not care.
  void parallel_for(int num_tasks, absl::FunctionRef<void(int index, int thread)> task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace brigade::kernels
