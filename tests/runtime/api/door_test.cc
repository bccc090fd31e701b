// The door itself: addresses, tokens, TLS rules, health, status, reflection.
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "gtest/gtest.h"
#include "runtime/api/safe_text.h"
#include "runtime/api/server_credentials.h"
#include "runtime/tokenizer/utf8.h"
#include "tests/support/test_certificates.h"
#include "tests/support/test_server.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;
namespace health = ::grpc::health::v1;

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

grpc::Status check(const TestServer& server, const std::string& service,
                   health::HealthCheckResponse::ServingStatus* status) {
  auto stub = health::Health::NewStub(server.channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
  health::HealthCheckRequest request;
  request.set_service(service);
  health::HealthCheckResponse response;
  const grpc::Status result = stub->Check(&context, request, &response);
  *status = response.status();
  return result;
}

bool serving(const TestServer& server, const std::string& service) {
  health::HealthCheckResponse::ServingStatus status;
  return check(server, service, &status).ok() && status == health::HealthCheckResponse::SERVING;
}

v1::GetStatusResponse status_of(const TestServer& server) {
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  EXPECT_TRUE(server.stub->GetStatus(&context, {}, &response).ok());
  return response;
}

TEST(DoorTest, OnlyProtectedAddressesAreOpened) {
  const std::string token = write_file("token", "0123456789abcdef\n");
  const TestAuthority authority(testing::TempDir(), "door_ca");
  authority.issue("door");
  const std::string pem = testing::TempDir() + "door.pem", key = testing::TempDir() + "door.key";
  struct Case {
    runtime::DoorOptions options;
    const char* complaint;  // empty: accepted
  };
  const Case cases[] = {
      {{.listen = "127.0.0.1:0"}, ""},
      {{.listen = "localhost:0"}, ""},
      {{.listen = "[::1]:0"}, ""},
      {{.listen = "unix:/tmp/x"}, ""},
      {{.listen = "127.0.0.1:0", .token_file = token}, ""},
      {{.listen = "0.0.0.0:0"}, "not a loopback address"},
      {{.listen = "10.1.2.3:80"}, "not a loopback address"},
      {{.listen = "127.evil.example:80"}, "not a loopback address"},
      {{.listen = "0.0.0.0:0", .insecure = true}, ""},
      {{.listen = "0.0.0.0:0", .token_file = token, .insecure = true}, "travel in clear"},
      {{.listen = "0.0.0.0:0", .token_file = token}, "not a loopback address"},
      {{.listen = "0.0.0.0:0", .tls_cert = pem, .tls_key = key}, "--token-file or --client-ca"},
      {{.listen = "0.0.0.0:0", .tls_cert = pem, .tls_key = key, .token_file = token}, ""},
      {{.listen = "0.0.0.0:0", .tls_cert = pem, .tls_key = key, .client_ca = pem}, ""},
      {{.listen = "127.0.0.1:0", .tls_cert = pem}, "--tls-key"},
      {{.listen = "127.0.0.1:0", .client_ca = pem}, "--client-ca needs"},
      {{.listen = "127.0.0.1:0", .tls_cert = "/none", .tls_key = key}, "cannot read /none"},
      {{.listen = "127.0.0.1:0", .token_file = "/none"}, "--token-file: cannot read"},
      {{.listen = "127.0.0.1:0", .token_file = write_file("short", "abc")}, "at least 16"},
      {{.listen = "nowhere"}, "expected host:port"},
      {{.listen = "127.0.0.1:99999"}, "expected host:port"},
      {{.listen = ":50051"}, "name the host"},
  };
  for (const Case& test : cases) {
    const auto result = runtime::server_credentials(test.options);
    if (*test.complaint == '\0') {
      EXPECT_TRUE(result.ok()) << test.options.listen << ": " << result.status();
    } else {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << test.complaint;
      EXPECT_THAT(std::string(result.status().message()), HasSubstr(test.complaint));
    }
  }
}

TEST(DoorTest, TokenGuardsEverythingButHealth) {
  runtime::DoorOptions door;
  door.token_file = write_file("guard", "a-token-of-some-length\n");
  TestServer server({}, door);
  const auto call = [&](const char* authorization) {
    grpc::ClientContext context;
    if (authorization != nullptr) context.AddMetadata("authorization", authorization);
    v1::GetStatusResponse response;
    return server.stub->GetStatus(&context, {}, &response);
  };
  EXPECT_EQ(call(nullptr).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(call("Bearer wrong").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(call("a-token-of-some-length").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(call("Bearer a-token-of-some-length").ok());
  EXPECT_EQ(run_stream(*server.stub, request_of({1}, 2)).status.error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(serving(server, "live"));
}

TEST(DoorTest, ConstantTimeCompare) {
  EXPECT_TRUE(runtime::equal_in_constant_time("abc", "abc"));
  EXPECT_TRUE(runtime::equal_in_constant_time("", ""));
  EXPECT_FALSE(runtime::equal_in_constant_time("abc", "abd"));
  EXPECT_FALSE(runtime::equal_in_constant_time("abc", "ab"));
  EXPECT_FALSE(runtime::equal_in_constant_time("abc", ""));
  EXPECT_FALSE(runtime::equal_in_constant_time("abcabc", "abc"));
}

TEST(DoorTest, PortInUseIsRefused) {
  TestServer server;
  runtime::DoorOptions options;
  options.listen = server.server->address();
  runtime::ServingState state;
  RecordingObserver observer;
  const auto second = runtime::GrpcServer::start(options, &state, &observer);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

// triton-inference-server/server issue 7014: up at once, live while loading, ready only when it is.
TEST(DoorTest, HealthWhileLoading) {
  TestServer server({}, {}, {}, /*publish=*/false);
  server.generator->set_ready(false);
  EXPECT_TRUE(serving(server, "live"));
  EXPECT_FALSE(serving(server, ""));
  server.state.set_progress({"packing weights", 30, 100});
  v1::GetStatusResponse status = status_of(server);
  EXPECT_TRUE(status.live());
  EXPECT_FALSE(status.ready());
  EXPECT_EQ(status.loading().stage(), "packing weights");
  EXPECT_EQ(status.loading().done(), 30);
  const StreamResult early = run_stream(*server.stub, request_of({1}, 2));
  EXPECT_EQ(early.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(early.status.error_message(), HasSubstr("30 of 100"));

  server.publish();  // loaded, the warm-up step is still to come
  EXPECT_FALSE(status_of(server).ready());
  EXPECT_EQ(run_stream(*server.stub, request_of({1}, 2)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  server.generator->set_ready(true);
  EXPECT_TRUE(eventually([&] { return serving(server, ""); }));
  EXPECT_TRUE(run_stream(*server.stub, request_of({1}, 2)).status.ok());

  health::HealthCheckResponse::ServingStatus unknown;
  EXPECT_EQ(check(server, "brigade.v1.Nothing", &unknown).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

// A frozen step loop must show in health, which answers from elsewhere.
TEST(DoorTest, HealthMeansTheStepLoop) {
  TestServer server;
  auto stub = health::Health::NewStub(server.channel);
  grpc::ClientContext watch_context;
  health::HealthCheckRequest watch_request;
  auto watch = stub->Watch(&watch_context, watch_request);
  health::HealthCheckResponse seen;
  while (watch->Read(&seen) && seen.status() != health::HealthCheckResponse::SERVING) {
  }
  server.generator->freeze(true);
  EXPECT_TRUE(serving(server, "live")) << "nothing to do is no fault";
  grpc::ClientContext context;
  auto reader = server.stub->Generate(&context, request_of({1}, 50));
  EXPECT_TRUE(eventually([&] { return !serving(server, "live"); }));
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), health::HealthCheckResponse::NOT_SERVING);
  const absl::Time begin = absl::Now();
  EXPECT_THAT(status_of(server).reason(), HasSubstr("step loop"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(1));
  server.generator->freeze(false);
  ASSERT_TRUE(watch->Read(&seen));
  EXPECT_EQ(seen.status(), health::HealthCheckResponse::SERVING);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  watch_context.TryCancel();
  watch->Finish();
}

TEST(DoorTest, StatusCountsAndNames) {
  TestServer server;
  ASSERT_TRUE(run_stream(*server.stub, request_of({1, 2}, 7)).status.ok());
  const v1::GetStatusResponse status = status_of(server);
  EXPECT_EQ(status.model().name(), "scripted");
  EXPECT_EQ(status.model().vocab_size(), 257);
  EXPECT_TRUE(status.ready());
  EXPECT_EQ(status.load().generated_tokens(), 7);
  ASSERT_EQ(status.expert_rows_size(), 2);
  EXPECT_EQ(status.expert_rows(0).rows(3), 4);
  EXPECT_TRUE(eventually([&] {
    std::lock_guard lock(server.observer.mutex);
    return server.observer.ended == std::vector<absl::StatusCode>{absl::StatusCode::kOk};
  }));
  EXPECT_EQ(server.observer.first_tokens, 1);
  EXPECT_EQ(server.observer.gaps, 6);
}

TEST(DoorTest, StatusTextsAreSafe) {
  EXPECT_EQ(runtime::safe_text("caf\xC3\xA9 \xFF\x1b[31m"), "caf\xC3\xA9 \xEF\xBF\xBD [31m");
  EXPECT_TRUE(runtime::is_valid_utf8(runtime::safe_text(std::string(5000, '\xC3'), 100)));
  EXPECT_EQ(runtime::safe_text("abcdef", 3), "abc...");
}

}  // namespace
}  // namespace brigade::tests
