// The worker's end of the data link: an expert server made for the terms of a registration, and the
// door through which experts change while it serves. Calls wait for the server's thread, with a
// deadline; any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "expert_parallel/experts/expert_server.h"
#include "runtime/worker/control_messages.h"

namespace brigade::runtime::worker {

using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<expert_parallel::Transport>>(
    const std::string& plane)>;
// On the server's thread; must not wait.
using LinkLost = std::function<void(uint64_t incarnation, const absl::Status& why)>;
using expert_parallel::DeviceFailed;

class DataPlane {
 public:
  // Device and shard outlive it.
  DataPlane(kernels::Device& device, expert_parallel::ExpertShard& shard,
            TransportFactory make_transport, LinkLost on_lost,
            DeviceFailed on_device_failed = nullptr);
  ~DataPlane();

  // Makes this end of the link, with a server that fits the terms, and connects it to the
  // coordinator's. Returns the address for the coordinator.
  absl::StatusOr<std::string> open(const Registered& terms, uint64_t incarnation);
  void close();
  // Runs `change` where nobody uses the shard's slots meanwhile.
  absl::Status change(std::function<void()> change);
  // Sets the counters of a heartbeat.
  void count(WorkerHeartbeat* heartbeat) const;

 private:
  absl::Status ensure_server(int max_rows, const std::string& plane);

  kernels::Device& device_;
  expert_parallel::ExpertShard& shard_;
  const TransportFactory make_transport_;
  const LinkLost on_lost_;
  const DeviceFailed on_device_failed_;
  std::shared_ptr<expert_parallel::ExpertServer> server() const;

  // One change or replacement of the server at a time; held while a call waits.
  std::mutex change_mutex_;
  // Guards the pointer alone, so that counting never waits for a batch.
  mutable std::mutex pointer_mutex_;
  std::shared_ptr<expert_parallel::ExpertServer> server_;
  int max_rows_ = 0;   // of the server
  std::string plane_;  // of its transport
  uint64_t coordinator_id_ = 0;
  uint64_t incarnation_ = 0;  // of the link; the server's thread
};

}  // namespace brigade::runtime::worker
