// A coordinator's data plane for one worker process: UCX links, an exchange whose experts all live
// at the worker, and a local one with the whole model to compare with. All calls from the test's
// thread.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "expert_parallel/exchange/cluster_exchange.h"
#include "runtime/model/load_model.h"
#include "tests/support/scripted_coordinator.h"

namespace brigade::tests {

class WorkerLinksBed {
 public:
  static constexpr int kMaxRows = 16;

  explicit WorkerLinksBed(const std::string& model_folder);
  ~WorkerLinksBed();

  // Registers the worker of `session` as rank 0 and links it; false when it does not link.
  bool admit(ScriptedCoordinator::Session& session);
  // Orders a load and waits for its report; the experts by MoE layer.
  v1::WorkerMessage load(ScriptedCoordinator::Session& session,
                         const std::vector<std::vector<int>>& experts);
  void release(ScriptedCoordinator::Session& session, const std::vector<std::vector<int>>& experts);

  // Random rows of a layer to these experts, over the link: "" or in what the answers differ from
  // the local ones.
  std::string compare(int moe_layer, const std::vector<int>& experts);

  const expert_parallel::ExpertShard& whole() const { return *whole_; }
  const expert_parallel::ExpertGeometry& geometry() const { return geometry_; }

 private:
  const expert_parallel::Session session_{.coordinator_id = 42, .secret = {1, 2, 3}};
  runtime::OpenedModel model_;
  expert_parallel::ExpertGeometry geometry_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<expert_parallel::ExpertShard> whole_;
  std::unique_ptr<expert_parallel::WorkerLinks> links_;
  std::unique_ptr<expert_parallel::ClusterExchange> exchange_;
  std::unique_ptr<expert_parallel::Exchange> local_;
  std::mt19937_64 random_;
  int64_t next_command_ = 1;
};

}  // namespace brigade::tests
