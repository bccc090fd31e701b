// The coordinator's gRPC service for draft workers: one stream each, between which and a DraftLink
// messages travel as plain values. Registered at the control port's server beside the expert
// workers' service. One thread of its own starts writes, pings, and ends streams; it must run until
// the server has been shut down. start() and stop() by one thread; stop() may be called twice.
#pragma once

#include <memory>

#include "runtime/speculative/draft_links.h"

namespace grpc {
class Service;
}

namespace brigade::runtime {

class DraftService {
 public:
  // `links` outlives this.
  explicit DraftService(DraftLinks& links);
  ~DraftService();

  void start();
  // After the server's shutdown.
  void stop();

  grpc::Service* service();

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace brigade::runtime
