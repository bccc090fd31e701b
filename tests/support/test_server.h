// A server over a scripted generator with a channel to it, all in this process; ports are free
// ones.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "brigade/v1/generation.grpc.pb.h"
#include "runtime/api/grpc_server.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/scripted_generator.h"

namespace brigade::tests {

// Keeps what calls report.
class RecordingObserver : public runtime::RequestObserver {
 public:
  void first_token(absl::Duration) override { ++first_tokens; }
  void token_gap(absl::Duration) override { ++gaps; }
  void call_ended(const absl::Status& status, absl::Duration) override {
    std::lock_guard lock(mutex);
    ended.push_back(status.code());
  }
  std::atomic<int> first_tokens{0}, gaps{0};
  std::mutex mutex;
  std::vector<absl::StatusCode> ended;
};

struct TestServer {
  explicit TestServer(ScriptedOptions scripted = {}, runtime::DoorOptions door = {},
                      const std::vector<std::string>& words = {}, bool publish = true);
  ~TestServer();

  void publish();

  std::unique_ptr<runtime::Tokenizer> tokenizer;
  runtime::ServingState state;
  RecordingObserver observer;
  std::shared_ptr<ScriptedGenerator> generator;
  std::unique_ptr<runtime::GrpcServer> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Generation::Stub> stub;
};

// A new connection, not shared with other channels of this process. With `small_window` the client
// buffers about 64 KiB a stream and no more, as one far from any memory would.
std::shared_ptr<grpc::Channel> dial(const std::string& address, bool small_window = false);

v1::GenerateRequest request_of(std::vector<int64_t> ids, int64_t max_tokens);

struct StreamResult {
  grpc::Status status;
  v1::Started started;
  std::vector<int64_t> ids;
  std::string text;
  std::vector<v1::Finished> finished;
};
// Runs a call to its end with a deadline.
StreamResult run_stream(v1::Generation::Stub& stub, const v1::GenerateRequest& request,
                        absl::Duration deadline = absl::Seconds(20));

// Looks every millisecond until `condition` holds; false after `limit`.
template <typename Condition>
bool eventually(Condition condition, absl::Duration limit = absl::Seconds(10)) {
  const absl::Time deadline = absl::Now() + limit;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace brigade::tests
