// A coordinator's links and its expert workers in one process, each with its own transport, thread
// and shard; the control plane is played by direct calls. Weights are random from a seed and the
// same for everybody. All calls from the test's thread, which is also the step thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "expert_parallel/exchange/cluster_exchange.h"
#include "expert_parallel/experts/expert_server.h"

namespace brigade::tests {

struct ExpertClusterOptions {
  expert_parallel::ExpertGeometry geometry;
  int workers = 0;
  int microbatches = 1;
  int max_rows = 64;
  int frames_per_rank = 4;
  uint64_t seed = 1;
  bool coordinator_holds_all = true;
  kernels::DeviceKind coordinator_device = kernels::DeviceKind::kCpu;
  expert_parallel::HomelessRows homeless_rows = expert_parallel::HomelessRows::kPark;
  // rank, or kCoordinator
  std::function<std::unique_ptr<expert_parallel::Transport>(expert_parallel::Rank)> make_transport;
  // Instead of make_transport: rows of frames lie in device memory.
  std::function<std::unique_ptr<expert_parallel::Transport>(expert_parallel::Rank,
                                                            kernels::Device&)>
      make_device_transport;
  // Empty: coordinator_device, and CPUs for the workers.
  std::function<std::unique_ptr<kernels::Device>(expert_parallel::Rank)> make_device;
};

class ExpertCluster {
 public:
  explicit ExpertCluster(const ExpertClusterOptions& options);
  ~ExpertCluster();

  // A new life of a rank: a fresh process with the experts that the placement gives it, linked, and
  // in the next view.
  void start_worker(expert_parallel::Rank rank, const expert_parallel::Placement& placement);
  // The same process joins again with a new incarnation, as after a false alarm.
  void rejoin_worker(expert_parallel::Rank rank);
  // As kill -9: the link ends without a word.
  void kill_worker(expert_parallel::Rank rank);
  // The membership's verdict: the rank is fenced and leaves the view.
  void declare_lost(expert_parallel::Rank rank);
  // The view from now on: this placement, all ranks that were started and not declared lost.
  std::shared_ptr<const expert_parallel::ClusterView> view(
      const expert_parallel::Placement& placement);
  // Losses that the links have reported since the last call.
  std::vector<expert_parallel::Rank> take_evidence();

  // x: [rows, hidden] on the host; answers: [rows * top_k] rows of the wire dtype, on the host.
  std::vector<uint8_t> reference(int layer, const std::vector<float>& x,
                                 const std::vector<int32_t>& experts);
  std::vector<uint8_t> answers_of(expert_parallel::Exchange& exchange, int rows);
  // Device copy of host rows; stays until the next call for the same microbatch.
  const float* upload(int microbatch, const std::vector<float>& x);

  const expert_parallel::ExpertGeometry& geometry() const { return options_.geometry; }
  expert_parallel::ClusterExchange& exchange(int microbatch) { return *exchanges_[microbatch]; }
  expert_parallel::WorkerLinks& links() { return *links_; }
  expert_parallel::ExpertServer* server(expert_parallel::Rank rank) {
    return workers_[rank].server.get();
  }
  kernels::Stream& stream() { return *stream_; }

 private:
  struct Worker {
    std::unique_ptr<kernels::Device> device;
    std::unique_ptr<expert_parallel::ExpertShard> shard;
    std::unique_ptr<expert_parallel::ExpertServer> server;
    uint64_t incarnation = 0;
    bool in_view = false;
  };
  std::unique_ptr<expert_parallel::ExpertShard> make_shard(
      kernels::Device& device, const std::function<bool(int layer, int expert)>& wanted);
  void link(expert_parallel::Rank rank);
  std::unique_ptr<kernels::Device> make_device(expert_parallel::Rank rank);
  std::unique_ptr<expert_parallel::Transport> make_transport(expert_parallel::Rank rank,
                                                             kernels::Device& device);

  const ExpertClusterOptions options_;
  expert_parallel::Session session_;
  expert_parallel::FrameLimits limits_;
  std::vector<std::vector<float>> weights_;  // by layer, expert and matrix
  std::unique_ptr<kernels::Device> device_, reference_device_;
  std::unique_ptr<kernels::Stream> stream_, reference_stream_;
  std::unique_ptr<expert_parallel::ExpertShard> shard_, reference_shard_;
  std::unique_ptr<expert_parallel::Exchange> reference_;
  std::vector<kernels::Buffer> x_;
  std::vector<Worker> workers_;
  uint64_t next_incarnation_ = 100;
  std::mutex evidence_mutex_;
  std::vector<std::pair<expert_parallel::Rank, uint64_t>> evidence_;
  std::unique_ptr<expert_parallel::WorkerLinks> links_;
  std::vector<std::unique_ptr<expert_parallel::ClusterExchange>> exchanges_;
};

}  // namespace brigade::tests
