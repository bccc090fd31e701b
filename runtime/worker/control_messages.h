// What a worker and its coordinator say to each other, as plain values: the session's rules and its
// tests need no Protobuf. The wire is proto/brigade/v1/cluster.proto; control_stream.cc converts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace brigade::runtime::worker {

struct ExpertRange {
  int moe_layer = 0;
  std::vector<int> experts;
  bool operator==(const ExpertRange&) const = default;
};
using ExpertRanges = std::vector<ExpertRange>;

// Coordinator to worker.
struct Registered {
  int rank = -1;
  uint64_t coordinator_id = 0;
  std::array<uint8_t, 16> session_secret{};
  uint64_t coordinator_incarnation = 0;
  std::string data_address;  // of the coordinator's end of the link
  absl::Duration heartbeat_interval;
  absl::Duration lost_after;  // silence that means loss
  int num_ranks = 0, microbatches = 0, max_rows = 0;
  std::string data_plane = "host";
};
struct LinkConnected {};
struct LoadExperts {
  int64_t command = 0;
  ExpertRanges experts;
};
struct ReleaseExperts {
  int64_t command = 0;
  ExpertRanges experts;
};
struct CoordinatorHeartbeat {};
struct Dismissed {
  std::string reason;
};
using CoordinatorMessage = std::variant<Registered, LinkConnected, LoadExperts, ReleaseExperts,
                                        CoordinatorHeartbeat, Dismissed>;

// Worker to coordinator.
struct Registration {
  std::string worker_id;
  uint64_t incarnation = 0;
  std::string build_version;
  std::string model_fingerprint;
  uint64_t numerics_id = 0;
  std::string numerics_text;
  std::string host, boot_id;
  uint64_t network_namespace = 0;
  std::string device;
  std::string data_planes;  // comma separated
  int64_t memory_bytes = 0;  // for experts; 0: no limit known
  int64_t expert_bytes = 0;  // of that, one takes
  int threads = 0;
  uint64_t process = 0;  // drawn once by each process, for all its registrations
};
struct LinkReady {
  std::string data_address;
};
struct ExpertsLoaded {
  int64_t command = 0;
  ExpertRanges experts;
  std::vector<uint64_t> checksums;  // by expert, in the order of `experts`
  int64_t resident_bytes = 0;
};
struct LoadFailed {
  int64_t command = 0;
  std::string reason;
};
struct WorkerHeartbeat {
  int64_t sequence = 0;
  int64_t resident_bytes = 0, reserved_bytes = 0;
  int64_t frames = 0, rows = 0, terms = 0, refused_frames = 0, declined_terms = 0;
};
struct Leaving {
  std::string reason;
};
using WorkerMessage =
    std::variant<Registration, LinkReady, ExpertsLoaded, LoadFailed, WorkerHeartbeat, Leaving>;

}  // namespace brigade::runtime::worker
