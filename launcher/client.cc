#include "launcher/client.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "brigade/v1/generation.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "kernels/core/status.h"

namespace brigade::launcher {
namespace {

namespace health = ::grpc::health::v1;

constexpr int kMaxReconnectDelayMs = 1000;

absl::Status to_absl(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::StatusOr<std::string> read_file(const std::string& path, const char* flag) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot read ", path));
  }
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> channel_credentials(
    const ConnectOptions& options) {
  if (options.ca.empty()) {
    if (!options.cert.empty() || !options.key.empty()) {
      return absl::InvalidArgumentError("--cert and --key need --ca, which turns TLS on");
    }
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions ssl;
  ASSIGN_OR_RETURN(ssl.pem_root_certs, read_file(options.ca, "--ca"));
  if (options.cert.empty() != options.key.empty()) {
    return absl::InvalidArgumentError("--cert and --key go together");
  }
  if (!options.cert.empty()) {
    ASSIGN_OR_RETURN(ssl.pem_cert_chain, read_file(options.cert, "--cert"));
    ASSIGN_OR_RETURN(ssl.pem_private_key, read_file(options.key, "--key"));
  }
  return grpc::SslCredentials(ssl);
}

// Cancels a call when a flag set by a signal handler turns true, which a blocked read cannot see.
class InterruptWatch {
 public:
  InterruptWatch(grpc::ClientContext* context, const std::atomic<bool>* interrupted) {
    if (interrupted == nullptr) return;
    thread_ = std::thread([this, context, interrupted] {
      std::unique_lock lock(mutex_);
      while (!ended_) {
        if (*interrupted) context->TryCancel();
        changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return ended_; });
      }
    });
  }
  ~InterruptWatch() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace

struct Client::Connection {
  std::string bearer;
  std::unique_ptr<v1::Generation::Stub> generation;
  std::unique_ptr<health::Health::Stub> health;

  void prepare(grpc::ClientContext* context, absl::Time deadline) const {
    if (deadline != absl::InfiniteFuture()) context->set_deadline(absl::ToChronoTime(deadline));
    if (!bearer.empty()) context->AddMetadata("authorization", bearer);
  }
};

absl::StatusOr<std::unique_ptr<Client>> Client::create(const ConnectOptions& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials,
                   channel_credentials(options));
  auto connection = std::make_unique<Connection>();
  if (!options.token_file.empty()) {
    ASSIGN_OR_RETURN(std::string token, read_file(options.token_file, "--token-file"));
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
    connection->bearer = "Bearer " + token;
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectDelayMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  if (!options.server_name.empty()) arguments.SetSslTargetNameOverride(options.server_name);
  auto channel = grpc::CreateCustomChannel(options.server, credentials, arguments);
  connection->generation = v1::Generation::NewStub(channel);
  connection->health = health::Health::NewStub(channel);
  return std::unique_ptr<Client>(new Client(std::move(connection)));
}

Client::Client(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}
Client::~Client() = default;

absl::Status Client::generate(const v1::GenerateRequest& request, absl::Time deadline,
                              const std::function<bool(const v1::GenerateResponse&)>& on_message,
                              const std::atomic<bool>* interrupted) {
  grpc::ClientContext context;
  connection_->prepare(&context, deadline);
  auto reader = connection_->generation->Generate(&context, request);
  bool stopped = false;
  {
    InterruptWatch watch(&context, interrupted);
    v1::GenerateResponse message;
    while (!stopped && reader->Read(&message)) {
      stopped = !on_message(message) || (interrupted != nullptr && *interrupted);
    }
    if (stopped) context.TryCancel();
  }
  const absl::Status status = to_absl(reader->Finish());
  if (stopped && status.ok()) return absl::CancelledError("stopped by the client");
  return status;
}

absl::StatusOr<v1::GetStatusResponse> Client::status(absl::Time deadline) {
  grpc::ClientContext context;
  connection_->prepare(&context, deadline);
  v1::GetStatusResponse response;
  RETURN_IF_ERROR(to_absl(connection_->generation->GetStatus(&context, {}, &response)));
  return response;
}

absl::StatusOr<bool> Client::healthy(const std::string& service, absl::Time deadline) {
  grpc::ClientContext context;
  connection_->prepare(&context, deadline);
  health::HealthCheckRequest request;
  request.set_service(service);
  health::HealthCheckResponse response;
  RETURN_IF_ERROR(to_absl(connection_->health->Check(&context, request, &response)));
  return response.status() == health::HealthCheckResponse::SERVING;
}

}  // namespace brigade::launcher
