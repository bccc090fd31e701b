#include "runtime/api/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "brigade/v1/generation.grpc.pb.h"
#include "kernels/core/status.h"
#include "runtime/api/answer.h"
#include "runtime/api/generate_call.h"
#include "runtime/api/generate_once_call.h"
#include "runtime/api/health_service.h"
#include "runtime/api/rpc_message.h"
#include "runtime/api/server_credentials.h"
#include "runtime/api/status_to_proto.h"

namespace brigade::runtime {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);
// Bounds what a stream can hold in flight beside its token stream.
constexpr int kWriteBufferBytes = 16 << 10;
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);

// All methods take and give bytes: requests are parsed by us so that broken ones get a reason.
using RawGeneration = v1::Generation::WithRawCallbackMethod_Generate<
    v1::Generation::WithRawCallbackMethod_GenerateOnce<
        v1::Generation::WithRawCallbackMethod_GetStatus<v1::Generation::Service>>>;

std::string_view authorization_of(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto given = metadata.find("authorization");
  if (given == metadata.end()) return {};
  return {given->second.data(), given->second.size()};
}

class GenerationService final : public RawGeneration {
 public:
  GenerationService(const CallServices& services, const RateMeter& rates,
                    std::shared_ptr<TokenWatch> tokens)
      : services_(services), rates_(rates), tokens_(std::move(tokens)) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override {
    return GenerateCall::start(services_, context, *request);
  }

  grpc::ServerUnaryReactor* GenerateOnce(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return GenerateOnceCall::start(services_, context, *request, response);
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    v1::GetStatusRequest message;
    const absl::Status status = parse_message(*request, &message);
    if (status.ok()) {
      v1::GetStatusResponse answer =
          status_to_proto(*services_.state, rates_.rates(), services_.open_calls->size());
      if (!may_see_cluster(*tokens_->now(), authorization_of(*context))) {
        answer.clear_cluster();
        if (answer.has_drafting()) answer.mutable_drafting()->clear_draft_workers();
      }
      *response = serialize_message(answer);
    }
    reactor->Finish(to_grpc_status(status));
    return reactor;
  }

 private:
  const CallServices& services_;
  const RateMeter& rates_;
  const std::shared_ptr<TokenWatch> tokens_;
};

std::string dial_address(const std::string& listen, int port) {
  if (listen.starts_with("unix:")) return listen;
  return absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
}

}  // namespace

// Destroyed in reverse order: the server first, then what its calls use.
struct GrpcServer::Parts {
  Parts(const DoorOptions& options, std::shared_ptr<TokenWatch> tokens, ServingState* state,
        RequestObserver* observer)
      : options(options),
        open_calls(options.max_open_calls),
        services{state, &pump, &open_calls, observer},
        generation(services, rates, std::move(tokens)) {}

  absl::Status listen(std::shared_ptr<grpc::ServerCredentials> credentials);
  void watch();

  const DoorOptions options;
  CallPump pump;
  OpenCalls open_calls;
  RateMeter rates;
  CallServices services;
  HealthService health;
  GenerationService generation;
  std::unique_ptr<grpc::Server> server;
  int port = 0;

  std::mutex mutex;
  std::condition_variable stopped;
  bool stopping = false;
  std::thread watcher;
};

absl::Status GrpcServer::Parts::listen(std::shared_ptr<grpc::ServerCredentials> credentials) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options.listen, std::move(credentials), &port);
  builder.SetMaxReceiveMessageSize(options.max_request_bytes);
  // Two servers must not share a port unnoticed.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, kWriteBufferBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kWriteBufferBytes);
  builder.RegisterService(health.service());
  builder.RegisterService(&generation);
  server = builder.BuildAndStart();
  if (server == nullptr || (port == 0 && !options.listen.starts_with("unix:"))) {
    return absl::UnavailableError(
        absl::StrCat("--listen ", options.listen, ": cannot listen there (is the port in use?)"));
  }
  return absl::OkStatus();
}

// Keeps health and rates fresh and cuts readers that stand still.
void GrpcServer::Parts::watch() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    lock.unlock();
    const ServingState::Health now = services.state->health();
    health.set(now.live, now.ready);
    if (const auto generator = services.state->generator(); generator != nullptr) {
      const GeneratorStatus status = generator->status();
      rates.add_sample(absl::Now(), status.prompt_tokens, status.generated_tokens);
    }
    open_calls.cut_stalled(absl::Now() - options.max_reader_stall);
    lock.lock();
    stopped.wait_for(lock, absl::ToChronoMilliseconds(kWatchInterval), [this] { return stopping; });
  }
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::start(const DoorOptions& options,
                                                              ServingState* state,
                                                              RequestObserver* observer) {
  ASSIGN_OR_RETURN(DoorCredentials door, server_credentials(options));
  capture_protobuf_log();
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  auto parts = std::make_unique<Parts>(options, std::move(door.tokens), state, observer);
  RETURN_IF_ERROR(parts->listen(std::move(door.credentials)));
  parts->pump.start();
  parts->watcher = std::thread([raw = parts.get()] { raw->watch(); });
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(parts)));
}

GrpcServer::GrpcServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

GrpcServer::~GrpcServer() { stop(); }

int GrpcServer::port() const { return parts_->port; }

std::string GrpcServer::address() const {
  return dial_address(parts_->options.listen, parts_->port);
}

bool GrpcServer::drain(absl::Time deadline) {
  parts_->services.state->start_drain();
  return parts_->open_calls.wait_until_empty(deadline);
}

void GrpcServer::stop() {
  {
    std::lock_guard lock(parts_->mutex);
    if (parts_->stopping) return;
    parts_->stopping = true;
  }
  parts_->stopped.notify_all();
  parts_->watcher.join();
  parts_->services.state->start_drain();
  parts_->health.set(true, false);
  parts_->open_calls.close(
      absl::UnavailableError("the server is stopping; send the request again"));
  parts_->health.stop();
  // Time for the last messages to go out; what is open then is cut by gRPC.
  const absl::Time deadline = absl::Now() + kShutdownGrace;
  parts_->open_calls.wait_until_empty(deadline);
  parts_->server->Shutdown(absl::ToChronoTime(deadline));
  parts_->server->Wait();
  parts_->pump.stop();
}

}  // namespace brigade::runtime
