// The coordinator's end of the control plane, played by a test: real gRPC, answers by hand.
// Heartbeats go out by themselves until muted. All calls from the test's thread; every wait has a
// limit.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "brigade/v1/cluster.pb.h"

namespace brigade::tests {

struct ScriptedCoordinatorOptions {
  int port = 0;
  std::string token;                         // that workers must send; empty: any
  std::string tls_cert, tls_key, client_ca;  // PEM files; empty: no TLS
  absl::Status refusal;                      // not OK: every registration ends so
};

class ScriptedCoordinator {
 public:
  // One worker's stream.
  class Session {
   public:
    const v1::Register& registration() const;
    // The next message that is no heartbeat.
    std::optional<v1::WorkerMessage> next(absl::Duration limit = absl::Seconds(20));
    int64_t heartbeats() const;
    v1::WorkerHeartbeat last_heartbeat() const;
    void say(const v1::CoordinatorMessage& message);
    // No heartbeats any more.
    void mute();
    void cut();
    // The worker's side has ended.
    bool gone(absl::Duration limit = absl::Seconds(20)) const;

    struct State;
    explicit Session(std::shared_ptr<State> state) : state_(std::move(state)) {}

   private:
    std::shared_ptr<State> state_;
  };

  explicit ScriptedCoordinator(const ScriptedCoordinatorOptions& options = {});
  // As a kill: streams are cut.
  ~ScriptedCoordinator();

  int port() const;
  std::string address() const;
  // The next worker that registered; nullptr when none came.
  std::unique_ptr<Session> accept(absl::Duration limit = absl::Seconds(20));

 private:
  struct Server;
  std::unique_ptr<Server> server_;
};

}  // namespace brigade::tests
