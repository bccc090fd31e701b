// What the coordinator says about itself and its workers. Asked one at a time; the answer comes in
// a thread of the probe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "launcher/client.h"

namespace brigade::launcher {

struct WorkerReadiness {
  bool active = false;
  uint64_t incarnation = 0;  // another one each time it registers
  std::string detail;        // "joining", "lost: ..."
};

struct Readiness {
  absl::Status reached;  // not OK: nobody answered, and nothing below is known
  bool ready = false;
  std::string reason;                              // why not
  std::string stage;                               // while the model loads
  double fraction = -1;                            // of it; below 0: unknown
  std::map<std::string, WorkerReadiness> workers;  // by name
};

class ReadinessProbe {
 public:
  using Callback = std::function<void(const Readiness&)>;
  virtual ~ReadinessProbe() = default;
  // False when an earlier question is still open.
  virtual bool ask(Callback callback) = 0;
};

// Asks the coordinator's API (GetStatus), each question within 2 s.
std::unique_ptr<ReadinessProbe> make_readiness_probe(const ConnectOptions& options);

}  // namespace brigade::launcher
