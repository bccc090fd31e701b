// Expert workers in this process for an engine over a real checkpoint: each has its own transport,
// thread, device and shard with the checkpoint's experts; exchanges follow a board of views as a
// coordinator's do. The control plane is played by direct calls, from one thread at a time beside
// the step thread. Outlives the models whose exchanges it made.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "expert_parallel/exchange/worker_links.h"
#include "expert_parallel/experts/expert_server.h"
#include "runtime/cluster/view_board.h"
#include "runtime/model/expert_reader.h"
#include "runtime/model/load_model.h"

namespace brigade::tests {

struct EngineClusterOptions {
  std::string checkpoint;
  int workers = 0;
  int microbatches = 1;
  int max_rows = 0;  // of one microbatch
  kernels::DType wire_dtype = kernels::DType::kF32;
  // rank, or kCoordinator; empty: loopback.
  std::function<std::unique_ptr<expert_parallel::Transport>(expert_parallel::Rank)> make_transport;
};

// Of all exchanges of one model.
struct ClusterCounts {
  uint64_t exchanges = 0, with_several_frames = 0, rows_with_several_experts = 0;
  uint64_t workers_without_rows = 0, replayed_rows = 0, parked_rows = 0;
};

class EngineCluster {
 public:
  explicit EngineCluster(const EngineClusterOptions& options);
  ~EngineCluster();

  const expert_parallel::ExpertGeometry& geometry() const { return geometry_; }
  // For one model's load, with options.microbatches exchanges.
  runtime::ExchangeFactory exchange_factory();
  // While that model lives; any thread.
  ClusterCounts counts() const;
  uint64_t refused_frames() const { return links_->refusals().total(); }

  // A new life of a rank, with what the placement gives it, linked; in views from now on.
  void start_worker(expert_parallel::Rank rank, const expert_parallel::Placement& placement);
  void start_all(const expert_parallel::Placement& placement);
  // Loads what the placement gives a rank beyond what it has, while it serves.
  void load_missing(expert_parallel::Rank rank, const expert_parallel::Placement& placement);
  // As kill -9: the link ends without a word.
  void kill_worker(expert_parallel::Rank rank);
  // Waits for the evidence, then takes the rank out of the views to come. False: none in time.
  bool declare_lost(expert_parallel::Rank rank, absl::Time deadline);
  // The current view from now on: this placement, the ranks that are there.
  void publish(const expert_parallel::Placement& placement);

 private:
  class CountedExchange;
  struct Worker {
    std::unique_ptr<kernels::Device> device;
    std::unique_ptr<kernels::StagedUpload> upload;
    std::unique_ptr<expert_parallel::ExpertShard> shard;
    std::unique_ptr<expert_parallel::ExpertServer> server;
    uint64_t incarnation = 0;
    bool in_view = false;
  };
  void link(expert_parallel::Rank rank);

  EngineClusterOptions options_;
  runtime::OpenedModel model_;
  std::unique_ptr<runtime::ExpertReader> reader_;
  expert_parallel::ExpertGeometry geometry_;
  expert_parallel::Session session_;
  expert_parallel::FrameLimits limits_;
  std::vector<Worker> workers_;
  uint64_t next_incarnation_ = 100;
  mutable std::mutex mutex_;  // guards the next three
  std::condition_variable changed_;
  std::set<uint64_t> lost_;  // incarnations
  std::vector<const CountedExchange*> exchanges_;
  runtime::ViewBoard board_;
  std::unique_ptr<expert_parallel::WorkerLinks> links_;
};

}  // namespace brigade::tests
