// A coordinator's draft side in a test's process: the port that draft workers dial, over real gRPC,
// and the step thread's view of them, driven by the test. Port 0; one thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/api/door_options.h"
#include "runtime/speculative/draft_service.h"
#include "runtime/speculative/remote_drafts.h"

namespace brigade::tests {

struct DraftBedOptions {
  const runtime::Tokenizer* tokenizer = nullptr;
  int port = 0;
  std::string draft_token_file, worker_token_file;
  absl::Duration lost_after = absl::Seconds(2);
  int window = 8;
};

class DraftBed {
 public:
  explicit DraftBed(const DraftBedOptions& options);
  ~DraftBed();

  std::string address() const { return "127.0.0.1:" + std::to_string(port); }
  // Collects until that many workers serve.
  bool wait_for_workers(size_t count, absl::Duration limit = absl::Seconds(20));
  // Collects until `condition` holds.
  template <typename Condition>
  bool collect_until(Condition condition, absl::Duration limit = absl::Seconds(20)) {
    const absl::Time deadline = absl::Now() + limit;
    while (true) {
      drafts.collect(absl::Now());
      if (condition()) return true;
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Microseconds(200));
    }
  }

  runtime::DraftLinks links;
  runtime::RemoteDrafts drafts;
  runtime::DraftService service;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

}  // namespace brigade::tests
