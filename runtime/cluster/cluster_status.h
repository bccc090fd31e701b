// Who is in the cluster, which experts live where and what has happened, for status pages and
// metrics. Plain data; counters since start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace brigade::runtime {

struct WorkerStatus {
  int rank = 0;
  std::string worker_id;
  std::string state;  // joining, active, leaving, lost
  uint64_t incarnation = 0;
  std::string host, device;
  int64_t experts = 0;  // over all layers
  int64_t expert_bytes = 0;
  int64_t reserved_expert_bytes = 0;  // memory taken for experts, held or not
  uint64_t rows_sent = 0, frames_sent = 0;
  double heartbeat_age_seconds = 0;
  std::string last_loss;  // why it was declared lost last time
  int64_t max_experts = -1;  // that its memory takes; -1: no limit known
  std::string load_failure;  // why it is given no more experts
};

struct ClusterStatus {
  uint64_t placement_version = 0;
  int expected_workers = 0;
  int active_workers = 0;
  bool started = false;  // experts have been handed out
  int64_t parked_experts = 0;
  std::vector<WorkerStatus> workers;      // by rank slot
  std::vector<std::vector<int>> holders;  // [moe layer][expert]; -1: the coordinator, -2: nobody
  int64_t coordinator_expert_bytes = 0;
  uint64_t exchanges = 0, replayed_rows = 0, parked_rows = 0, late_answers = 0, declined_terms = 0;
  uint64_t refused_frames = 0;
  int64_t workers_lost = 0, workers_joined = 0, workers_refused = 0;
  std::vector<uint64_t> replayed_rows_by_layer;
  std::string control_address;
  std::string not_ready_reason;  // empty: every expert has a holder
};

}  // namespace brigade::runtime
