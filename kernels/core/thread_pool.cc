#include "kernels/core/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/core/check.h"

namespace brigade::kernels {

// A job is open from the moment parallel_for publishes it until the caller has run out of indices.
// A worker that wakes later finds it closed and sleeps on, so the caller never waits for a thread
// that got no processor time; it waits only for workers that are inside a piece.
struct ThreadPool::State {
  using Task = absl::FunctionRef<void(int index, int thread)>;

  std::mutex mutex;
  std::condition_variable job_opened;
  std::condition_variable workers_left;
  const Task* task = nullptr;  // guarded by mutex; null: no open job
  int num_tasks = 0;           // guarded by mutex
  int workers_inside = 0;      // guarded by mutex
  uint64_t job = 0;            // guarded by mutex; so that a worker enters a job once
  bool stopping = false;       // guarded by mutex
  std::atomic<int> next_index{0};
  std::vector<std::thread> workers;

  void take_pieces(const Task& run, int count, int thread) {
    while (true) {
      const int index = next_index.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) return;
      run(index, thread);
    }
  }

  void work(int thread) {
    uint64_t last_job = 0;
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      job_opened.wait(lock, [&] { return stopping || (task != nullptr && job != last_job); });
      if (stopping) return;
      last_job = job;
      const Task* run = task;
      const int count = num_tasks;
      ++workers_inside;
      lock.unlock();
      take_pieces(*run, count, thread);
      lock.lock();
      if (--workers_inside == 0) workers_left.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  CHECK(num_threads >= 1);
  state_->workers.reserve(num_threads - 1);
  for (int thread = 1; thread < num_threads; ++thread) {
    state_->workers.emplace_back([state = state_.get(), thread] { state->work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
  }
  state_->job_opened.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::parallel_for(int num_tasks,
                              absl::FunctionRef<void(int index, int thread)> task) {
  State& state = *state_;
  if (num_tasks <= 1 || state.workers.empty()) {
    for (int index = 0; index < num_tasks; ++index) task(index, 0);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    state.next_index.store(0, std::memory_order_relaxed);
    state.task = &task;
    state.num_tasks = num_tasks;
    ++state.job;
  }
  // The caller takes pieces too, so n pieces can use at most n - 1 helpers.
  const int helpers = num_tasks - 1;
  if (helpers >= static_cast<int>(state.workers.size())) {
    state.job_opened.notify_all();
  } else {
    for (int i = 0; i < helpers; ++i) state.job_opened.notify_one();
  }
  state.take_pieces(task, num_tasks, 0);
  std::unique_lock<std::mutex> lock(state.mutex);
  state.task = nullptr;
  state.workers_left.wait(lock, [&] { return state.workers_inside == 0; });
}

}  // namespace brigade::kernels
