#include "tests/support/scripted_coordinator.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "brigade/v1/cluster.grpc.pb.h"
#include "gtest/gtest.h"

namespace brigade::tests {
namespace {

constexpr auto kBeat = std::chrono::milliseconds(50);

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::shared_ptr<grpc::ServerCredentials> credentials(const ScriptedCoordinatorOptions& options) {
  if (options.tls_cert.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions ssl(
      options.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  if (!options.client_ca.empty()) ssl.pem_root_certs = text_of(options.client_ca);
  ssl.pem_key_cert_pairs.push_back({text_of(options.tls_key), text_of(options.tls_cert)});
  return grpc::SslServerCredentials(ssl);
}

grpc::Status to_grpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace

struct ScriptedCoordinator::Session::State {
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;

  std::mutex mutex;
  std::condition_variable changed;
  v1::Register registration;
  std::deque<v1::WorkerMessage> said;
  v1::WorkerHeartbeat last_beat;
  int64_t beats = 0;
  bool muted = false, gone = false;
  std::mutex write_mutex;
  Stream* stream = nullptr;                // guarded by write_mutex; null once the call is over
  grpc::ServerContext* context = nullptr;  // same

  void write(const v1::CoordinatorMessage& message) {
    std::lock_guard lock(write_mutex);
    if (stream != nullptr) stream->Write(message);
  }
  void cancel() {
    std::lock_guard lock(write_mutex);
    if (context != nullptr) context->TryCancel();
  }
  void take(const v1::WorkerMessage& message) {
    std::lock_guard lock(mutex);
    if (message.has_heartbeat()) {
      last_beat = message.heartbeat();
      ++beats;
    } else {
      said.push_back(message);
    }
    changed.notify_all();
  }
};

struct ScriptedCoordinator::Server final : v1::WorkerControl::Service {
  explicit Server(const ScriptedCoordinatorOptions& options_in) : options(options_in) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", options.port), credentials(options), &port);
    builder.RegisterService(this);
    server = builder.BuildAndStart();
    EXPECT_TRUE(server != nullptr && port > 0) << "port " << options.port;
  }

  grpc::Status Join(grpc::ServerContext* context, Session::State::Stream* stream) override {
    if (!options.token.empty()) {
      const auto given = context->client_metadata().find("authorization");
      if (given == context->client_metadata().end() ||
          std::string(given->second.data(), given->second.size()) != "Bearer " + options.token)
        return {grpc::StatusCode::UNAUTHENTICATED, "authorization: not the workers' token"};
    }
    v1::WorkerMessage first;
    if (!stream->Read(&first) || !first.has_register_())
      return {grpc::StatusCode::INVALID_ARGUMENT, "the first message must be register"};
    if (!options.refusal.ok()) return to_grpc(options.refusal);
    auto state = std::make_shared<Session::State>();
    state->registration = first.register_();
    state->stream = stream;
    state->context = context;
    std::thread beating([state] { beat(*state); });
    {
      std::lock_guard lock(mutex);
      waiting.push_back(state);
      all.push_back(state);
      changed.notify_all();
    }
    for (v1::WorkerMessage message; stream->Read(&message);) state->take(message);
    {
      std::lock_guard lock(state->mutex);
      state->gone = true;
      state->changed.notify_all();
    }
    beating.join();
    std::lock_guard write_lock(state->write_mutex);
    state->stream = nullptr;
    state->context = nullptr;
    return grpc::Status::OK;
  }

  static void beat(Session::State& state) {
    std::unique_lock lock(state.mutex);
    v1::CoordinatorMessage message;
    while (!state.changed.wait_for(lock, kBeat, [&] { return state.gone; })) {
      if (state.muted) continue;
      message.mutable_heartbeat()->set_sequence(message.heartbeat().sequence() + 1);
      lock.unlock();
      state.write(message);
      lock.lock();
    }
  }

  const ScriptedCoordinatorOptions options;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Session::State>> waiting;
  std::vector<std::shared_ptr<Session::State>> all;
};

const v1::Register& ScriptedCoordinator::Session::registration() const {
  return state_->registration;
}

std::optional<v1::WorkerMessage> ScriptedCoordinator::Session::next(absl::Duration limit) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, absl::ToChronoNanoseconds(limit),
                           [&] { return !state_->said.empty() || state_->gone; });
  if (state_->said.empty()) return std::nullopt;
  v1::WorkerMessage message = std::move(state_->said.front());
  state_->said.pop_front();
  return message;
}

int64_t ScriptedCoordinator::Session::heartbeats() const {
  std::lock_guard lock(state_->mutex);
  return state_->beats;
}

v1::WorkerHeartbeat ScriptedCoordinator::Session::last_heartbeat() const {
  std::lock_guard lock(state_->mutex);
  return state_->last_beat;
}

void ScriptedCoordinator::Session::say(const v1::CoordinatorMessage& message) {
  state_->write(message);
}

void ScriptedCoordinator::Session::mute() {
  std::lock_guard lock(state_->mutex);
  state_->muted = true;
}

// The worker sees CANCELLED: a handler that sits in Read() cannot return another code.
void ScriptedCoordinator::Session::cut() { state_->cancel(); }

bool ScriptedCoordinator::Session::gone(absl::Duration limit) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, absl::ToChronoNanoseconds(limit),
                                  [&] { return state_->gone; });
}

ScriptedCoordinator::ScriptedCoordinator(const ScriptedCoordinatorOptions& options)
    : server_(std::make_unique<Server>(options)) {}

ScriptedCoordinator::~ScriptedCoordinator() {
  for (const auto& state : server_->all) state->cancel();
  server_->server->Shutdown(std::chrono::system_clock::now());
}

int ScriptedCoordinator::port() const { return server_->port; }

std::string ScriptedCoordinator::address() const {
  return absl::StrCat("127.0.0.1:", server_->port);
}

std::unique_ptr<ScriptedCoordinator::Session> ScriptedCoordinator::accept(absl::Duration limit) {
  std::unique_lock lock(server_->mutex);
  if (!server_->changed.wait_for(lock, absl::ToChronoNanoseconds(limit),
                                 [&] { return !server_->waiting.empty(); }))
    return nullptr;
  auto session = std::make_unique<Session>(server_->waiting.front());
  server_->waiting.pop_front();
  return session;
}

}  // namespace brigade::tests
