// Where draft workers join the coordinator: their links, their service, and the control port when
// no expert workers open it. Used by the thread that loads, then by the main thread; the links by
// the engine.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/app/config.h"
#include "runtime/cluster/control_server.h"
#include "runtime/speculative/draft_links.h"
#include "runtime/speculative/draft_service.h"

namespace brigade::runtime {

class DraftPort {
 public:
  // `tokenizer` outlives it; null: every draft worker is refused, with a sentence.
  explicit DraftPort(const Tokenizer* tokenizer);
  ~DraftPort();

  // Without expert workers: opens the control port. INVALID_ARGUMENT names the flag; UNAVAILABLE
  // when it cannot be bound.
  absl::Status listen(const CoordinatorConfig& config);

  DraftLinks& links() { return links_; }
  grpc::Service* service() { return service_.service(); }

  // After the engine, and after the server that the service was given to. May be called twice.
  void stop();

 private:
  void log_counters() const;

  DraftLinks links_;
  DraftService service_;
  std::unique_ptr<ControlServer> server_;
};

}  // namespace brigade::runtime
