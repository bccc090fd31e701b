// All draft workers that have dialled one coordinator. Streams come and go on gRPC's threads; the
// step thread looks at a number to see whether anything changed. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/speculative/draft_link.h"
#include "runtime/speculative/draft_status.h"

namespace brigade::runtime {

class DraftLinks {
 public:
  static constexpr size_t kMaxLinks = 64;

  explicit DraftLinks(const DraftLinkOptions& options) : options_(options) {}

  // A stream has been opened. RESOURCE_EXHAUSTED when there are too many.
  absl::StatusOr<std::shared_ptr<DraftLink>> open(std::shared_ptr<kernels::Waker> waker,
                                                  absl::Time now);
  // ... and has ended; `why` is for the log.
  void close(const std::shared_ptr<DraftLink>& link, const std::string& why = "");

  // Rises with every open and close.
  uint64_t version() const { return version_; }
  std::vector<std::shared_ptr<DraftLink>> links() const;
  std::vector<DraftLinkStatus> status() const;

  // What the step thread counted, for whoever shows it.
  void publish(const RemoteDraftsCounters& counters);
  RemoteDraftsCounters counters() const;

 private:
  const DraftLinkOptions options_;
  std::atomic<uint64_t> version_{0};
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<DraftLink>> links_;
  uint64_t next_id_ = 1;
  RemoteDraftsCounters counters_;
};

}  // namespace brigade::runtime
