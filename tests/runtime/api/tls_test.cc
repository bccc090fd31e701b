// TLS at the door: who gets in with which certificate, and certificates that change or are out of
// date.
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/api/server_credentials.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_certificates.h"
#include "tests/support/test_server.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A trusted authority, one that nobody trusts, and certificates of both. Every test has its own
// files.
class TlsTest : public testing::Test {
 protected:
  TlsTest() : ca_(folder_.path(), "ca"), other_(folder_.path(), "other") {
    ca_.issue("server");
    ca_.issue("client");
    other_.issue("stranger");
  }

  std::string path(const std::string& name) const { return folder_.path() + name; }

  runtime::DoorOptions door(const std::string& client_ca = "") const {
    runtime::DoorOptions options;
    options.tls_cert = path("server.pem");
    options.tls_key = path("server.key");
    if (!client_ca.empty()) options.client_ca = path(client_ca);
    return options;
  }

  std::shared_ptr<grpc::Channel> channel(const TestServer& server, const std::string& ca,
                                         const std::string& identity) const {
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
    if (!ca.empty()) {
      grpc::SslCredentialsOptions ssl;
      ssl.pem_root_certs = read_file(path(ca));
      if (!identity.empty()) {
        ssl.pem_cert_chain = read_file(path(identity + ".pem"));
        ssl.pem_private_key = read_file(path(identity + ".key"));
      }
      credentials = grpc::SslCredentials(ssl);
    }
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(server.server->address(), credentials, arguments);
  }

  static grpc::StatusCode call(const std::shared_ptr<grpc::Channel>& channel,
                               const std::string& token = "") {
    auto stub = v1::Generation::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    v1::GetStatusResponse response;
    return stub->GetStatus(&context, {}, &response).error_code();
  }

  // The code of a GetStatus call by a client that trusts `ca` and shows `identity`, each optional.
  grpc::StatusCode call(const TestServer& server, const std::string& ca,
                        const std::string& identity, const std::string& token = "") const {
    return call(channel(server, ca, identity), token);
  }

  // Until new connections end so; the server looks at its files every second.
  bool comes_to(grpc::StatusCode code, const TestServer& server, const std::string& ca,
                const std::string& identity) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (call(server, ca, identity) != code) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return true;
  }

  const TempFolder folder_;
  const TestAuthority ca_, other_;
};

TEST_F(TlsTest, ServerCertificate) {
  TestServer server({}, door());
  EXPECT_EQ(call(server, "ca.pem", ""), grpc::StatusCode::OK);
  EXPECT_EQ(call(server, "other.pem", ""), grpc::StatusCode::UNAVAILABLE) << "wrong authority";
  EXPECT_EQ(call(server, "", ""), grpc::StatusCode::UNAVAILABLE) << "no TLS";
}

TEST_F(TlsTest, ClientCertificates) {
  ca_.issue("late", -absl::Minutes(1));
  TestServer server({}, door("ca.pem"));
  EXPECT_EQ(call(server, "ca.pem", "client"), grpc::StatusCode::OK);
  EXPECT_EQ(call(server, "ca.pem", ""), grpc::StatusCode::UNAVAILABLE) << "none shown";
  EXPECT_EQ(call(server, "ca.pem", "stranger"), grpc::StatusCode::UNAVAILABLE)
      << "signed by another";
  EXPECT_EQ(call(server, "ca.pem", "late"), grpc::StatusCode::UNAVAILABLE) << "expired";
}

TEST_F(TlsTest, TokenOverTls) {
  runtime::DoorOptions options = door();
  options.token_file = path("token");
  std::ofstream(options.token_file) << "a-token-of-some-length\n";
  TestServer server({}, options);
  EXPECT_EQ(call(server, "ca.pem", ""), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(call(server, "ca.pem", "", "another-token-of-length"),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(call(server, "ca.pem", "", "a-token-of-some-length"), grpc::StatusCode::OK);
}

// New certificates are used for new connections; those that are open stay open.
TEST_F(TlsTest, CertificatesAreTakenUpWhenTheyChange) {
  TestServer server({}, door());
  const auto open = channel(server, "ca.pem", "");
  ASSERT_EQ(call(open), grpc::StatusCode::OK);
  ASSERT_EQ(call(server, "other.pem", ""), grpc::StatusCode::UNAVAILABLE);
  other_.issue("server");
  EXPECT_TRUE(comes_to(grpc::StatusCode::OK, server, "other.pem", ""));
  EXPECT_EQ(call(server, "ca.pem", ""), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(call(open), grpc::StatusCode::OK);
}

TEST_F(TlsTest, ClientAuthoritiesAreTakenUpWhenTheyChange) {
  TestServer server({}, door("ca.pem"));
  // The clients' trust in the server stays as it is.
  std::ofstream(path("servers.pem")) << read_file(path("ca.pem"));
  ASSERT_EQ(call(server, "servers.pem", "stranger"), grpc::StatusCode::UNAVAILABLE);
  std::rename(path("other.pem").c_str(), path("ca.pem").c_str());
  EXPECT_TRUE(comes_to(grpc::StatusCode::OK, server, "servers.pem", "stranger"));
  EXPECT_EQ(call(server, "servers.pem", "client"), grpc::StatusCode::UNAVAILABLE);
}

// A server whose certificate runs out is refused by its clients until there is a new one.
TEST_F(TlsTest, ExpiredAndRenewed) {
  TestServer server({}, door());
  ca_.issue("server", -absl::Minutes(1));
  EXPECT_TRUE(comes_to(grpc::StatusCode::UNAVAILABLE, server, "ca.pem", ""));
  ca_.issue("server");
  EXPECT_TRUE(comes_to(grpc::StatusCode::OK, server, "ca.pem", ""));
}

TEST_F(TlsTest, WrongFilesAreNamedBeforeThePortOpens) {
  const auto complaint = [](const runtime::DoorOptions& options) {
    return std::string(runtime::server_credentials(options).status().message());
  };
  EXPECT_EQ(complaint(door("ca.pem")), "");
  runtime::DoorOptions wrong = door();
  wrong.tls_key = path("client.key");
  EXPECT_EQ(complaint(wrong),
            "--tls-key: " + path("client.key") + " is not the key of " + path("server.pem"));
  wrong.tls_key = path("server.pem");
  EXPECT_THAT(complaint(wrong), HasSubstr("holds no private key in PEM without a passphrase"));
  wrong = door();
  wrong.tls_cert = path("server.key");
  EXPECT_EQ(complaint(wrong), "--tls-cert: " + path("server.key") + " holds no certificate in PEM");
  EXPECT_THAT(complaint(door("client.key")), HasSubstr("--client-ca: "));
  ca_.issue("server", -absl::Hours(2));
  EXPECT_THAT(complaint(door()),
              HasSubstr("--tls-cert: " + path("server.pem") + " has expired on"));
}

}  // namespace
}  // namespace brigade::tests
