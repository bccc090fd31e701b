// The control port as a worker sees it: a scripted client over loopback gRPC. Who is let in and
// with which sentence not, the order of a registration, and the end of a worker that falls silent.
#include "runtime/cluster/control_server.h"

#include <grpcpp/grpcpp.h>

#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "brigade/v1/cluster.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/scripted_worker.h"

namespace brigade::runtime {
namespace {

using namespace expert_parallel;
using ::testing::HasSubstr;

constexpr ExpertGeometry kGeometry = {
    .moe_layers = 2, .experts = 3, .top_k = 2, .hidden = 64, .ffn = 32};

v1::WorkerMessage registration(const std::string& id = "w0") {
  v1::WorkerMessage message;
  v1::Register* content = message.mutable_register_();
  content->set_worker_id(id);
  content->set_incarnation(3);
  content->set_build_version("1.0");
  content->set_model_fingerprint("f00d");
  content->set_numerics_id(77);
  return message;
}

// A worker's end of one stream; every wait ends with the call's deadline.
class Client {
 public:
  explicit Client(const std::string& address, const std::string& token = "") {
    auto credentials = token.empty() ? grpc::InsecureChannelCredentials()
                                     : grpc::experimental::LocalCredentials(LOCAL_TCP);
    stub_ = v1::WorkerControl::NewStub(grpc::CreateChannel(address, std::move(credentials)));
    if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
    context_.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
    stream_ = stub_->Join(&context_);
  }
  ~Client() { context_.TryCancel(); }

  void say(const v1::WorkerMessage& message) { stream_->Write(message); }
  // The next message that is no heartbeat; of no kind at the end.
  v1::CoordinatorMessage hear() {
    v1::CoordinatorMessage message;
    do {
      message.Clear();
      if (!stream_->Read(&message)) break;
      heartbeats_ += message.has_heartbeat();
    } while (message.has_heartbeat());
    return message;
  }
  grpc::Status end() {
    while (hear().kind_case() != v1::CoordinatorMessage::KIND_NOT_SET) continue;
    return stream_->Finish();
  }
  int heartbeats() const { return heartbeats_; }

 private:
  std::unique_ptr<v1::WorkerControl::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> stream_;
  int heartbeats_ = 0;
};

class ControlServerTest : public ::testing::Test {
 protected:
  ControlServerTest() : experts_(kGeometry, 1), hub_(make_loopback_hub()) {
    device_ = *kernels::Device::create(kernels::DeviceKind::kCpu, 1);
    home_ = std::make_unique<tests::SeededHome>(*device_, experts_);
    settings_ = {.geometry = kGeometry,
                 .expected_workers = 1,
                 .max_ranks = 4,
                 .max_rows = 8,
                 .identity = {"1.0", "f00d", 77, "probe 77"},
                 .session = {.coordinator_id = 5, .secret = {1, 2, 3}},
                 .incarnation = 9,
                 .heartbeat = absl::Milliseconds(20),
                 .lost_after = absl::Milliseconds(500)};
    door_.kind = DoorKind::kControl;
    door_.listen = "127.0.0.1:0";
  }
  ~ControlServerTest() override {
    if (server_ != nullptr) server_->stop();
    if (host_ != nullptr) host_->stop();
  }
  void start() {
    host_ = std::make_unique<ClusterHost>(settings_, make_loopback_transport(hub_), *home_);
    home_->connect(host_.get());
    host_->start();
    auto server = ControlServer::start(door_, *host_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string secret_file(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(::testing::TempDir(), "control_", getpid(), "_", name);
    std::ofstream(path) << text;
    return path;
  }

  tests::SeededExperts experts_;
  std::shared_ptr<LoopbackHub> hub_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<tests::SeededHome> home_;
  ClusterSettings settings_;
  DoorOptions door_;
  std::unique_ptr<ClusterHost> host_;
  std::unique_ptr<ControlServer> server_;
};

TEST_F(ControlServerTest, OthersAreRefusedWithBothValues) {
  start();
  const auto refusal = [&](const v1::WorkerMessage& message) {
    Client client(server_->address());
    client.say(message);
    return client.end();
  };
  v1::WorkerMessage version = registration(), model = registration(), numerics = registration();
  version.mutable_register_()->set_build_version("0.9");
  model.mutable_register_()->set_model_fingerprint("beef");
  numerics.mutable_register_()->set_numerics_id(78);
  for (const auto& [message, sentence] :
       {std::pair{version, "worker w0 has version 0.9, the coordinator has 1.0"},
        std::pair{model, "a model with fingerprint beef, the coordinator has f00d"},
        std::pair{numerics,
                  "has numerics 000000000000004e (), the coordinator has "
                  "000000000000004d (probe 77)"}}) {
    const grpc::Status status = refusal(message);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr(sentence));
  }
  EXPECT_EQ(refusal({}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::WorkerMessage early;
  early.mutable_heartbeat();
  EXPECT_EQ(refusal(early).error_message(), "the first message must register");
}

TEST_F(ControlServerTest, OnlyTheWorkersTokenOpensThePort) {
  door_.token_file = secret_file("client", "client-token-0123456789");
  door_.worker_token_file = secret_file("worker", "worker-token-0123456789");
  start();
  const auto status_with = [&](const std::string& token) {
    Client client(server_->address(), token);
    v1::WorkerMessage wrong = registration();
    wrong.mutable_register_()->set_build_version("0.9");
    client.say(wrong);
    return client.end().error_code();
  };
  EXPECT_EQ(status_with("client-token-0123456789"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(status_with("some-other-token-012345"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(status_with("worker-token-0123456789"), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ControlServerTest, OtherHostsNeedProtection) {
  start();
  door_.listen = "0.0.0.0:0";
  const auto server = ControlServer::start(door_, *host_);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(server.status().message()),
              HasSubstr("--control-listen 0.0.0.0:0 is not a loopback address"));
}

TEST_F(ControlServerTest, AWorkerRegistersLinksLoadsAndIsLostWhenSilent) {
  start();
  auto shard = *ExpertShard::create(*device_, kGeometry);
  const FrameLimits limits = {.hidden = 64, .experts = 3, .moe_layers = 2, .max_slots = 16};
  auto data = *ExpertServer::create(make_loopback_transport(hub_), *device_, *shard,
                                    {.limits = limits}, nullptr);
  data->start();
  Client client(server_->address());
  client.say(registration());
  const v1::CoordinatorMessage first = client.hear();
  ASSERT_TRUE(first.has_registered()) << first.DebugString();
  const v1::Registered& terms = first.registered();
  EXPECT_EQ(terms.rank(), 0);
  EXPECT_EQ(terms.coordinator_id(), 5u);
  EXPECT_EQ(terms.session_secret().size(), 16u);
  EXPECT_EQ(terms.coordinator_incarnation(), 9u);
  EXPECT_EQ(terms.lost_after_ms(), 500);
  EXPECT_EQ(terms.max_rows(), 8);
  Session session{.coordinator_id = 5, .secret = {1, 2, 3}};
  v1::WorkerMessage ready;
  ready.mutable_link_ready()->set_data_address(
      *data->open(session, {kCoordinator, 9}, {0, 3}, absl::Now() + absl::Seconds(10)));
  client.say(ready);
  EXPECT_TRUE(client.hear().has_link_connected());
  const v1::CoordinatorMessage load = client.hear();
  ASSERT_TRUE(load.has_load()) << load.DebugString();
  ASSERT_EQ(load.load().experts_size(), 2);
  EXPECT_EQ(load.load().experts(1).moe_layer(), 1);
  EXPECT_EQ(load.load().experts(1).experts_size(), 3);
  EXPECT_EQ(host_->not_ready_reason(), "loading experts: 0 of 2 layers");
  v1::WorkerMessage loaded;
  loaded.mutable_loaded()->set_command(load.load().command());
  *loaded.mutable_loaded()->mutable_experts() = load.load().experts();
  for (uint64_t i = 1; i <= 6; ++i) loaded.mutable_loaded()->add_checksums(i);
  client.say(loaded);
  // Nothing more is said: silence ends it, and the coordinator takes the experts itself.
  const grpc::Status status = client.end();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("declared lost: heartbeat missed: silent for"));
  EXPECT_GE(client.heartbeats(), 5);
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  while ((host_->status().coordinator_expert_bytes == 0 || host_->status().workers_lost == 0) &&
         absl::Now() < limit) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(host_->status().workers_lost, 1);
  EXPECT_GT(host_->status().coordinator_expert_bytes, 0);
  data->stop();
}

TEST_F(ControlServerTest, StoppingTellsTheWorkers) {
  start();
  Client client(server_->address());
  client.say(registration());
  ASSERT_TRUE(client.hear().has_registered());
  std::thread stopper([&] { host_->dismiss_workers("stopping", absl::Now() + absl::Seconds(30)); });
  const v1::CoordinatorMessage last = client.hear();
  EXPECT_EQ(last.dismissed().reason(), "stopping");
  EXPECT_TRUE(client.end().ok());
  stopper.join();
}

}  // namespace
}  // namespace brigade::runtime
