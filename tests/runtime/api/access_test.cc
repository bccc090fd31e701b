// Tokens and their roles, on the clients' port and on the one where workers join.
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "brigade/v1/cluster.grpc.pb.h"
#include "brigade/v1/draft.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/api/server_credentials.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_certificates.h"
#include "tests/support/test_server.h"

namespace brigade::tests {
namespace {

using runtime::AccessTokens;
using runtime::DoorKind;
using runtime::DoorOptions;
using testing::HasSubstr;

const std::string kClient = "client-0123456789", kOperator = "operator-0123456789",
                  kWorker = "worker-0123456789", kDraft = "draft-0123456789";

// Of all tests of this process.
const std::string& folder() {
  static const TempFolder folder;
  return folder.path();
}

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = folder() + name;
  std::ofstream(path) << text;
  return path;
}

DoorOptions door_with_all_tokens(DoorKind kind = DoorKind::kApi) {
  DoorOptions options;
  options.kind = kind;
  options.token_file = write_file("client", kClient + "\n");
  options.operator_token_file = write_file("operator", kOperator + "\r\n");
  options.worker_token_file = write_file("worker", kWorker);
  options.draft_token_file = write_file("draft", kDraft + "\n");
  return options;
}

// A server of the control plane that answers nothing: whoever gets past its door is told
// UNIMPLEMENTED.
struct ControlDoor {
  explicit ControlDoor(DoorOptions options) {
    options.kind = DoorKind::kControl;
    options.listen = "127.0.0.1:0";
    auto door = runtime::server_credentials(options);
    EXPECT_TRUE(door.ok()) << door.status();
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(options.listen, door->credentials, &port);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    address = "127.0.0.1:" + std::to_string(port);
  }
  ~ControlDoor() { server->Shutdown(absl::ToChronoTime(absl::Now())); }

  v1::WorkerControl::Service service;
  std::unique_ptr<grpc::Server> server;
  std::string address;
};

grpc::Status join(const ControlDoor& door, const std::string& token,
                  std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr) {
  if (credentials == nullptr) credentials = grpc::InsecureChannelCredentials();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto stub =
      v1::WorkerControl::NewStub(grpc::CreateCustomChannel(door.address, credentials, arguments));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  return stub->Join(&context)->Finish();
}

grpc::Status join_as_draft(const ControlDoor& door, const std::string& token) {
  auto stub = v1::DraftControl::NewStub(dial(door.address));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  return stub->Draft(&context)->Finish();
}

grpc::Status get_status(const TestServer& server, const std::string& token,
                        v1::GetStatusResponse* response) {
  grpc::ClientContext context;
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  return server.stub->GetStatus(&context, {}, response);
}

TEST(AccessTest, EveryRoleHasATokenOfItsOwn) {
  const auto all = AccessTokens::read({write_file("a", kClient), write_file("b", kOperator),
                                       write_file("c", kWorker), write_file("d", kDraft)});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->role_of("Bearer " + kClient), runtime::Role::kClient);
  EXPECT_EQ(all->role_of("Bearer " + kDraft), runtime::Role::kDraft);
  EXPECT_EQ(all->role_of(kDraft), std::nullopt);
  EXPECT_EQ(all->role_of("Bearer " + kDraft + "9"), std::nullopt);
  const std::string twice = write_file("twice", kWorker + "\n");
  const std::string once = write_file("once", kWorker);
  const auto equal = AccessTokens::read({.client = twice, .worker = once});
  EXPECT_EQ(equal.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(equal.status().message(), "--worker-token-file " + once +
                                          " holds the same token as --token-file " + twice +
                                          "; every role needs one of its own");
}

TEST(AccessTest, ClientPortTakesClientsAndOperators) {
  TestServer server({}, door_with_all_tokens());
  v1::GetStatusResponse response;
  EXPECT_TRUE(get_status(server, kClient, &response).ok());
  EXPECT_TRUE(get_status(server, kOperator, &response).ok());
  for (const std::string& token : {kWorker, kDraft}) {
    const grpc::Status refused = get_status(server, token, &response);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(refused.error_message(), "authorization: this port needs a client or operator token");
  }
  EXPECT_EQ(get_status(server, "", &response).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  const grpc::Status strange = get_status(server, "some-other-token-1234", &response);
  EXPECT_EQ(strange.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(strange.error_message(), "authorization: not a token of this server");
}

TEST(AccessTest, ControlPortTakesWorkers) {
  const ControlDoor door(door_with_all_tokens());
  EXPECT_EQ(join(door, kWorker).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  for (const std::string& token : {kClient, kOperator, kDraft}) {
    const grpc::Status refused = join(door, token);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(refused.error_message(), "authorization: this port needs a worker token");
  }
  EXPECT_EQ(join(door, "").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(join(door, "some-other-token-1234").error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST(AccessTest, ControlPortTakesDraftWorkersWithTheirOwnToken) {
  const ControlDoor door(door_with_all_tokens());
  EXPECT_EQ(join_as_draft(door, kDraft).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  const grpc::Status refused = join_as_draft(door, kWorker);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(refused.error_message(), "authorization: this port needs a draft token");
  EXPECT_EQ(join_as_draft(door, "").error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

// A port whose roles have no tokens asks for none; the other port's token does not close it.
TEST(AccessTest, TokensOfOneRoleAlone) {
  DoorOptions worker_only;
  worker_only.worker_token_file = write_file("worker_only", kWorker);
  TestServer server({}, worker_only);
  v1::GetStatusResponse response;
  EXPECT_TRUE(get_status(server, "", &response).ok());
  const ControlDoor control(worker_only);
  EXPECT_EQ(join(control, "").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  DoorOptions client_only;
  client_only.token_file = write_file("client_only", kClient);
  const ControlDoor open(client_only);
  EXPECT_EQ(join(open, "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

template <typename Condition>
bool eventually(Condition condition) {
  for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end;
       absl::SleepFor(absl::Milliseconds(20))) {
    if (condition()) return true;
  }
  return false;
}

// Renaming is how an operator changes a file at one go.
void replace_file(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  ASSERT_EQ(std::rename((path + ".new").c_str(), path.c_str()), 0);
}

TEST(AccessTest, NewTokensAreTakenUpFromTheirFiles) {
  const DoorOptions options = door_with_all_tokens();
  const ControlDoor door(options);
  const std::string next = "worker-9876543210";
  EXPECT_EQ(join(door, next).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  replace_file(options.worker_token_file, next);
  EXPECT_TRUE(
      eventually([&] { return join(door, next).error_code() == grpc::StatusCode::UNIMPLEMENTED; }));
  EXPECT_EQ(join(door, kWorker).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(join_as_draft(door, kDraft).error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST(AccessTest, AWrongTokenFileChangesNothing) {
  const std::string path = write_file("rotated", kWorker), last = "worker-of-tomorrow";
  const auto watch = runtime::TokenWatch::open({.worker = path});
  ASSERT_TRUE(watch.ok()) << watch.status();
  const auto is_worker = [&](const std::string& token) {
    return (*watch)->now()->role_of("Bearer " + token) == runtime::Role::kWorker;
  };
  replace_file(path, "short");
  const absl::Time looked = absl::Now() + absl::Milliseconds(1500);
  EXPECT_TRUE(eventually([&] { return !is_worker(kWorker) || absl::Now() > looked; }));
  EXPECT_TRUE(is_worker(kWorker));
  replace_file(path, last);
  EXPECT_TRUE(eventually([&] { return is_worker(last); }));
  EXPECT_FALSE(is_worker(kWorker));
  EXPECT_FALSE(is_worker("short"));
}

TEST(AccessTest, OperatorsAloneSeeTheCluster) {
  const auto tokens = AccessTokens::read(
      {.client = write_file("see_a", kClient), .operator_ = write_file("see_b", kOperator)});
  ASSERT_TRUE(tokens.ok());
  EXPECT_TRUE(runtime::may_see_cluster(*tokens, "Bearer " + kOperator));
  EXPECT_FALSE(runtime::may_see_cluster(*tokens, "Bearer " + kClient));
  EXPECT_FALSE(runtime::may_see_cluster(*tokens, ""));
  EXPECT_TRUE(runtime::may_see_cluster(AccessTokens(), ""));
}

TEST(AccessTest, ControlPortOnOtherAddresses) {
  const TestAuthority ca(folder(), "door_ca");
  ca.issue("door");
  DoorOptions options;
  options.kind = DoorKind::kControl;
  options.listen = "0.0.0.0:0";
  const auto complaint = [&] {
    return std::string(runtime::server_credentials(options).status().message());
  };
  EXPECT_THAT(complaint(), HasSubstr("--control-listen 0.0.0.0:0 is not a loopback address"));
  options.tls_cert = folder() + "door.pem";
  options.tls_key = folder() + "door.key";
  options.client_ca = folder() + "door_ca.pem";
  EXPECT_THAT(complaint(), HasSubstr("add --worker-token-file"))
      << "any client's certificate would do for a worker";
  options.token_file = write_file("door_client", kClient);
  EXPECT_THAT(complaint(), HasSubstr("add --worker-token-file"));
  options.worker_token_file = write_file("door_worker", kWorker);
  EXPECT_EQ(complaint(), "");
  options.tls_cert = options.tls_key = options.client_ca = "";
  options.insecure = true;
  EXPECT_THAT(complaint(), HasSubstr("--worker-token-file: the token would travel in clear"));
}

// Mutual TLS and the worker's token together.
TEST(AccessTest, ControlPortWithCertificates) {
  const std::string mutual = folder() + "mutual_";
  const TestAuthority ca(mutual, "ca"), other(mutual, "other");
  ca.issue("server");
  ca.issue("peer");
  other.issue("stranger");
  DoorOptions options = door_with_all_tokens();
  options.tls_cert = mutual + "server.pem";
  options.tls_key = mutual + "server.key";
  options.client_ca = ca.path();
  const ControlDoor door(options);
  const auto text = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto shown = [&](const std::string& authority, const std::string& identity) {
    grpc::SslCredentialsOptions ssl{text(mutual + authority + ".pem")};
    if (!identity.empty()) {
      ssl.pem_cert_chain = text(mutual + identity + ".pem");
      ssl.pem_private_key = text(mutual + identity + ".key");
    }
    return grpc::SslCredentials(ssl);
  };
  EXPECT_EQ(join(door, kWorker, shown("ca", "peer")).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(join(door, kClient, shown("ca", "peer")).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(join(door, kWorker, shown("ca", "stranger")).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(join(door, kWorker, shown("ca", "")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(join(door, kWorker, shown("other", "peer")).error_code(), grpc::StatusCode::UNAVAILABLE)
      << "the worker does not trust the coordinator";
  EXPECT_EQ(join(door, kWorker).error_code(), grpc::StatusCode::UNAVAILABLE) << "no TLS";
}

}  // namespace
}  // namespace brigade::tests
