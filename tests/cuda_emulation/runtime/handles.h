// The live handles of one type, so that a freed or invented one is refused. Any thread.
#pragma once

#include <mutex>
#include <set>

namespace brigade::cuda_emulation {

template <typename Handle>
class Handles {
 public:
  void add(Handle handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    live_.insert(handle);
  }
  bool has(Handle handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    return live_.count(handle) > 0;
  }
  bool remove(Handle handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    return live_.erase(handle) > 0;
  }

 private:
  std::mutex mutex_;
  std::set<Handle> live_;  // guarded by mutex_
};

// Those of the process, for as long as it lives.
template <typename Handle>
Handles<Handle>& live_handles() {
  static auto* const handles = new Handles<Handle>;
  return *handles;
}

}  // namespace brigade::cuda_emulation
