// TLS at the door: who gets in with which certificate. Certificates are made afresh with the
// openssl command.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/test_server.h"

namespace brigade::tests {
namespace {

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// An authority and two certificates signed by it, for "localhost"; one more authority nobody
// trusts.
class TlsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string script =
        "set -e; cd '" + testing::TempDir() +
        "'; new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes';"
        "for ca in ca other; do openssl req -x509 $new -keyout $ca.key -out $ca.pem -days 2 -subj "
        "/CN=$ca; done;"
        "printf 'subjectAltName=DNS:localhost,IP:127.0.0.1' > san;"
        "issue() { openssl req $new -keyout $1.key -out $1.csr -subj /CN=$1;"
        "openssl x509 -req -in $1.csr -CA $2.pem -CAkey $2.key -CAcreateserial -days $3 "
        "-extfile san -out $1.pem; };"
        "issue server ca 2; issue client ca 2; issue stranger other 2";
    ready_ = std::system(("(" + script + ") >/dev/null 2>&1").c_str()) == 0;
  }
  void SetUp() override {
    if (!ready_) GTEST_SKIP() << "skipped: the openssl command is missing or failed";
  }

  static std::string path(const std::string& name) { return testing::TempDir() + name; }

  static runtime::DoorOptions door(const std::string& client_ca = "") {
    runtime::DoorOptions options;
    options.tls_cert = path("server.pem");
    options.tls_key = path("server.key");
    if (!client_ca.empty()) options.client_ca = path(client_ca);
    return options;
  }

  // The code of a GetStatus call by a client that trusts `ca` and shows `identity`, each optional.
  static grpc::StatusCode call(const TestServer& server, const std::string& ca,
                               const std::string& identity, const std::string& token = "") {
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
    auto stub = v1::Generation::NewStub(
        grpc::CreateCustomChannel(server.server->address(), credentials, arguments));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(3)));
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    v1::GetStatusResponse response;
    return stub->GetStatus(&context, {}, &response).error_code();
  }

  static bool ready_;
};
bool TlsTest::ready_ = false;

TEST_F(TlsTest, ServerCertificate) {
  TestServer server({}, door());
  EXPECT_EQ(call(server, "ca.pem", ""), grpc::StatusCode::OK);
  EXPECT_EQ(call(server, "other.pem", ""), grpc::StatusCode::UNAVAILABLE) << "wrong authority";
  EXPECT_EQ(call(server, "", ""), grpc::StatusCode::UNAVAILABLE) << "no TLS";
}

TEST_F(TlsTest, ClientCertificates) {
  TestServer server({}, door("ca.pem"));
  EXPECT_EQ(call(server, "ca.pem", "client"), grpc::StatusCode::OK);
  EXPECT_EQ(call(server, "ca.pem", ""), grpc::StatusCode::UNAVAILABLE) << "none shown";
  EXPECT_EQ(call(server, "ca.pem", "stranger"), grpc::StatusCode::UNAVAILABLE)
      << "signed by another";
}

TEST_F(TlsTest, TokenOverTls) {
  runtime::DoorOptions options = door();
  options.token_file = path("tls_token");
  std::ofstream(options.token_file) << "a-token-of-some-length\n";
  TestServer server({}, options);
  EXPECT_EQ(call(server, "ca.pem", ""), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(call(server, "ca.pem", "", "another-token-of-length"),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(call(server, "ca.pem", "", "a-token-of-some-length"), grpc::StatusCode::OK);
}

}  // namespace
}  // namespace brigade::tests
