// The coordinator's cluster as a whole: its host, the port where workers join, and the experts that
// the coordinator itself holds while no worker is there. Used by the thread that loads, then by the
// main thread; status from any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "expert_parallel/experts/expert_shard.h"
#include "runtime/app/config.h"
#include "runtime/cluster/cluster_status.h"
#include "runtime/model/load_model.h"

namespace grpc {
class Service;
}

namespace brigade::runtime {

class ClusterService {
 public:
  // Opens the control port and the data plane; workers may join from here on, draft workers too
  // where `drafts` is their service. `model`, `device` and `drafts` outlive it. INVALID_ARGUMENT
  // names the flag; UNAVAILABLE when the port cannot be bound.
  static absl::StatusOr<std::unique_ptr<ClusterService>> open(const CoordinatorConfig& config,
                                                              const OpenedModel& model,
                                                              kernels::Device& device,
                                                              grpc::Service* drafts);
  ~ClusterService();

  ExchangeFactory exchange_factory();
  // For the step thread, see WorkerLinks::sleep_until().
  void sleep_until(kernels::Waker& waker, absl::Time until);
  // Where the coordinator's own experts go. The shard outlives stop().
  void use(expert_parallel::ExpertShard& shard);

  // Empty: every expert has a holder.
  std::string not_ready_reason() const;
  ClusterStatus status() const;

  // Tells all workers to go and waits for it a little; then ends everything. The engine's thread
  // has ended before. May be called twice.
  // Waits for no load under way. May be called twice, as stop().
  void dismiss_workers();
  void stop();

 private:
  struct Parts;
  explicit ClusterService(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace brigade::runtime
