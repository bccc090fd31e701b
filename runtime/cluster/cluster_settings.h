// What a coordinator needs to know to run its cluster. Data; made before any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "expert_parallel/experts/expert_shard.h"
#include "expert_parallel/transport/frame.h"
#include "runtime/cluster/membership.h"

namespace brigade::runtime {

// What must be equal in all processes that serve together.
struct ServingIdentity {
  std::string build_version, model_fingerprint;
  uint64_t numerics_id = 0;
  std::string numerics_text;  // what went into it, for the sentence of a refusal
};

struct ClusterSettings {
  expert_parallel::ExpertGeometry geometry;
  int expected_workers = 0;
  int max_ranks = 16;
  int microbatches = 1;
  int max_rows = 0;  // of one microbatch
  ServingIdentity identity;
  std::string data_plane = "host";  // see runtime/device/data_plane_choice.h
  // Of the transport, if rows of frames lie in device memory.
  kernels::Device* frames_on = nullptr;
  // Random, drawn for this process.
  expert_parallel::Session session;
  uint64_t incarnation = 0;
  absl::Duration heartbeat = absl::Milliseconds(200);
  absl::Duration lost_after = absl::Seconds(2);
  absl::Duration reply_deadline = absl::Seconds(10);
  absl::Duration join_deadline = absl::Seconds(60);
  std::function<void(const std::string&)> log;  // one line; may be empty

  MembershipConfig membership() const {
    return {.moe_layers = geometry.moe_layers,
            .experts = geometry.experts,
            .expected_workers = expected_workers,
            .max_ranks = max_ranks};
  }
};

// OK, or FAILED_PRECONDITION with one sentence that gives both values.
absl::Status check_identity(const std::string& worker_id, const ServingIdentity& worker,
                            const ServingIdentity& coordinator);

// OK, or FAILED_PRECONDITION when a worker that offers `offered` (comma separated; empty: host)
// cannot use the coordinator's plane.
absl::Status check_data_plane(const std::string& worker_id, const std::string& offered,
                              const std::string& plane);

// A session id, secret and incarnation from the kernel's random source.
struct DrawnSession {
  expert_parallel::Session session;
  uint64_t incarnation = 0;
};
absl::StatusOr<DrawnSession> draw_session();

}  // namespace brigade::runtime
