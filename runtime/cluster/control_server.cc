#include "runtime/cluster/control_server.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "brigade/v1/cluster.grpc.pb.h"
#include "kernels/core/status.h"
#include "runtime/api/server_credentials.h"
#include "runtime/cluster/join_call.h"

namespace brigade::runtime {
namespace {

// A worker that vanished without a word (a stopped process, a cut cable) holds its stream no
// longer.
constexpr int kKeepaliveMs = 10'000, kKeepaliveTimeoutMs = 10'000;
// Reports of experts by layer are small; nothing else comes near.
constexpr int kMaxMessageBytes = 4 << 20;
constexpr std::chrono::milliseconds kShutdownGrace{500};

class WorkerControlService final : public v1::WorkerControl::CallbackService {
 public:
  explicit WorkerControlService(ClusterHost& host) : host_(host) {}
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Join(
      grpc::CallbackServerContext* context) override {
    return JoinCall::start(host_, context);
  }

 private:
  ClusterHost& host_;
};

}  // namespace

struct ControlServer::Parts {
  std::optional<WorkerControlService> service;
  std::unique_ptr<grpc::Server> server;
  std::string listen;
  int port = 0;
};

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::start(const DoorOptions& door,
                                                                    ClusterHost& host,
                                                                    grpc::Service* drafts) {
  auto parts = std::make_unique<Parts>();
  parts->service.emplace(host);
  return listen(door, std::move(parts), drafts);
}

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::start(const DoorOptions& door,
                                                                    grpc::Service& drafts) {
  return listen(door, std::make_unique<Parts>(), &drafts);
}

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::listen(const DoorOptions& door,
                                                                     std::unique_ptr<Parts> parts,
                                                                     grpc::Service* drafts) {
  ASSIGN_OR_RETURN(DoorCredentials credentials, server_credentials(door));
  parts->listen = door.listen;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(door.listen, std::move(credentials.credentials), &parts->port);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  if (parts->service) builder.RegisterService(&*parts->service);
  if (drafts != nullptr) builder.RegisterService(drafts);
  parts->server = builder.BuildAndStart();
  if (parts->server == nullptr || parts->port == 0) {
    return absl::UnavailableError(absl::StrCat("--control-listen ", door.listen,
                                               ": cannot listen there (is the port in use?)"));
  }
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(parts)));
}

ControlServer::ControlServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

ControlServer::~ControlServer() { stop(); }

int ControlServer::port() const { return parts_->port; }

std::string ControlServer::address() const {
  return absl::StrCat(parts_->listen.substr(0, parts_->listen.rfind(':')), ":", parts_->port);
}

void ControlServer::stop() {
  if (parts_->server == nullptr) return;
  parts_->server->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  parts_->server->Wait();
  parts_->server.reset();
}

}  // namespace brigade::runtime
