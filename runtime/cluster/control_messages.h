// What a worker and the coordinator say to each other on the control plane, as plain values; the
// wire form is brigade/v1/cluster.proto. Data; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/cluster/membership.h"

namespace brigade::runtime {

// A worker says:
struct Registration {
  std::string worker_id;  // stable over restarts: the same id gets the same rank slot
  uint64_t incarnation = 0;
  std::string build_version, model_fingerprint;
  uint64_t numerics_id = 0;
  std::string numerics_text;
  std::string host, boot_id;
  uint64_t network_namespace = 0;
  std::string device;
  int64_t memory_bytes = 0;  // for experts; 0: no limit known
  int64_t expert_bytes = 0;  // of that, one takes
  int64_t threads = 0;
  std::string data_planes;  // comma separated; empty: host
  uint64_t process = 0;     // drawn once by each process, for all its registrations

  std::optional<int64_t> max_experts() const {
    if (memory_bytes <= 0 || expert_bytes <= 0) return std::nullopt;
    return memory_bytes / expert_bytes;
  }
};
struct LinkOffer {  // its end of the data link is open
  std::string data_address;
};
struct LoadReport {
  int64_t command = 0;
  std::vector<ExpertKey> keys;
  std::vector<uint64_t> checksums;  // of weights, by key
  int64_t resident_bytes = 0;
};
struct LoadFailure {
  int64_t command = 0;
  std::string reason;
};
struct WorkerBeat {
  int64_t resident_bytes = 0, reserved_bytes = 0, frames = 0, rows = 0, terms = 0;
  int64_t refused_frames = 0, declined_terms = 0;
};
struct LeaveWish {
  std::string reason;
};
using WorkerSays =
    std::variant<Registration, LinkOffer, LoadReport, LoadFailure, WorkerBeat, LeaveWish>;

// The coordinator says:
struct Welcome {
  Rank rank = 0;
  uint64_t coordinator_id = 0;
  std::array<uint8_t, 16> secret{};
  uint64_t coordinator_incarnation = 0;
  std::string data_address;
  int64_t heartbeat_interval_ms = 0, lost_after_ms = 0;
  int num_ranks = 0, microbatches = 0, max_rows = 0;
  std::string data_plane = "host";
};
struct LinkUp {};
struct LoadOrder {
  int64_t command = 0;
  std::vector<ExpertKey> keys;
};
struct ReleaseOrder {
  int64_t command = 0;
  std::vector<ExpertKey> keys;
};
struct CoordinatorBeat {
  int64_t sequence = 0;
};
struct Dismissal {
  std::string reason;
};
using CoordinatorSays =
    std::variant<Welcome, LinkUp, LoadOrder, ReleaseOrder, CoordinatorBeat, Dismissal>;

}  // namespace brigade::runtime
