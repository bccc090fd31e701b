// All calls that are open now: bounded, counted for drain, aborted when the grace time is over, and
// cut when their client reads nothing for too long. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/api/call.h"

namespace brigade::runtime {

class OpenCalls {
 public:
  explicit OpenCalls(size_t max_calls) : max_calls_(max_calls) {}

  // RESOURCE_EXHAUSTED past the bound; the status of close() after it.
  absl::Status add(std::shared_ptr<Call> call);
  void remove(const std::shared_ptr<Call>& call);
  size_t size() const;

  // True when no call is open; false at the deadline.
  bool wait_until_empty(absl::Time deadline);

  // Refuses further calls with `status` and aborts the open ones with it.
  void close(const absl::Status& status);

  // Cuts calls whose write in flight was begun before `limit`. Returns how many.
  int cut_stalled(absl::Time limit);

 private:
  const size_t max_calls_;
  mutable std::mutex mutex_;
  std::condition_variable emptied_;
  std::unordered_set<std::shared_ptr<Call>> calls_;
  absl::Status closed_;
};

}  // namespace brigade::runtime
