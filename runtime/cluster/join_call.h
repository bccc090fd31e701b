// One worker's stream on the gRPC side of the control plane. Owns itself until gRPC is done with
// it. Callbacks come on gRPC's threads, the session's calls from the control thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "brigade/v1/cluster.pb.h"
#include "runtime/cluster/cluster_host.h"
#include "runtime/cluster/control_session.h"

namespace brigade::runtime {

class JoinCall final : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage> {
 public:
  static JoinCall* start(ClusterHost& host, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class Session;
  // Longer queues mean that the worker reads nothing.
  static constexpr size_t kMaxQueued = 1024;

  JoinCall(ClusterHost& host, grpc::CallbackServerContext* context);
  void send(const CoordinatorSays& message);
  void read_next();
  void finish(const grpc::Status& status);
  void finish_when_written();  // mutex_ is held

  ClusterHost& host_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<Session> session_;
  uint64_t id_ = 0;  // 0: the host took no session
  v1::WorkerMessage incoming_;

  std::mutex mutex_;                             // guards the rest
  std::deque<v1::CoordinatorMessage> outgoing_;  // the first one is being written
  std::optional<grpc::Status> end_;
  bool finished_ = false;
};

}  // namespace brigade::runtime
