// An expert worker inside the test's process: real data plane over loopback, real shard and
// weights, and a control stream that is plain calls. Its control thread answers as the program
// would, and misbehaves on demand. Also weights from a seed, equal for everybody.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "expert_parallel/experts/expert_server.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "runtime/cluster/cluster_host.h"

namespace brigade::tests {

// Random matrices of every expert of a model.
class SeededExperts {
 public:
  SeededExperts(const expert_parallel::ExpertGeometry& geometry, uint64_t seed);
  const expert_parallel::ExpertGeometry& geometry() const { return geometry_; }
  expert_parallel::ExpertSource source(int moe_layer, int expert) const;

 private:
  const expert_parallel::ExpertGeometry geometry_;
  std::vector<std::vector<float>> matrices_;  // by layer, expert, matrix
};

// The coordinator's own experts; loads at once, on the control thread.
class SeededHome final : public runtime::LocalExpertsHome {
 public:
  SeededHome(kernels::Device& device, const SeededExperts& experts);
  void connect(runtime::ClusterHost* host) { host_ = host; }
  const expert_parallel::ExpertShard& shard() const { return *shard_; }

  void load(std::vector<runtime::ExpertKey> keys) override;
  void release(std::vector<runtime::ExpertKey> keys) override;
  size_t resident_bytes() const override { return shard_->resident_bytes(); }

 private:
  const SeededExperts& experts_;
  runtime::ClusterHost* host_ = nullptr;
  std::unique_ptr<kernels::StagedUpload> upload_;
  std::unique_ptr<expert_parallel::ExpertShard> shard_;
};

struct ScriptedWorkerOptions {
  std::string id = "w";
  uint64_t incarnation = 1;
  runtime::ServingIdentity identity;
  bool beats = true;
  bool offers_link = true;
  bool fails_to_load = false;
  bool wrong_checksums = false;
  int64_t max_experts = 0;  // that its memory takes; 0: it says none
  uint64_t process = 0;     // see runtime::Registration
};

class ScriptedWorker {
 public:
  ScriptedWorker(std::shared_ptr<expert_parallel::LoopbackHub> hub, const SeededExperts& experts,
                 const ScriptedWorkerOptions& options);
  ~ScriptedWorker();

  // Opens a control stream and registers.
  void join(runtime::ClusterHost& host);
  void ask_to_leave();
  // As kill -9: stream and link end. Answers that are held never leave.
  void kill();
  // As SIGSTOP of the data plane alone: rows come in and are not answered until let go.
  void hold_answers();
  void let_answers_go();

  int rank() const;
  size_t resident_bytes() const { return shard_->resident_bytes(); }
  bool dismissed() const;
  // Of the control stream, once it has ended.
  bool ended() const;
  absl::Status end_status() const;

 private:
  class Stream;
  struct Inbox;
  void run();
  void on(const runtime::Welcome& message);
  void on(const runtime::LinkUp& message);
  void on(const runtime::LoadOrder& message);
  void on(const runtime::ReleaseOrder& message);
  void on(const runtime::CoordinatorBeat&) {}
  void on(const runtime::Dismissal& message);

  const SeededExperts& experts_;
  const ScriptedWorkerOptions options_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::StagedUpload> upload_;
  std::unique_ptr<expert_parallel::ExpertShard> shard_;
  std::unique_ptr<expert_parallel::ExpertServer> server_;
  std::shared_ptr<Inbox> inbox_;
  uint64_t coordinator_id_ = 0;
  std::string coordinator_address_;
  std::thread holder_;
  std::shared_ptr<std::atomic<bool>> holding_;
  std::thread thread_;
};

}  // namespace brigade::tests
