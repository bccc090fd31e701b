// The real brigade-expert-worker against a coordinator played by hand: real gRPC, real UCX, what it
// loads and answers, what it refuses. expert_worker_life_test has how it waits and ends.
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/e2e/expert_worker_process.h"
#include "tests/support/test_certificates.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;
using Session = ScriptedCoordinator::Session;

TEST_F(ExpertWorkerProcessTest, RegistersLoadsAndAnswersBitForBit) {
  ScriptedCoordinator coordinator;
  WorkerLinksBed bed(demo_model());
  auto worker = start(coordinator.address(), {"--name", "w0", "--memory", "1G"});
  auto session = coordinator.accept();
  ASSERT_NE(session, nullptr) << log();
  const v1::Register& about = session->registration();
  EXPECT_EQ(about.worker_id(), "w0");
  EXPECT_NE(about.incarnation(), 0u);
  EXPECT_EQ(about.model_fingerprint().size(), 32u);
  EXPECT_NE(about.numerics_id(), 0u);
  EXPECT_THAT(about.numerics_text(), HasSubstr("wire f32, KV f32"));
  EXPECT_FALSE(about.build_version().empty());
  EXPECT_FALSE(about.host().empty());
  EXPECT_EQ(about.boot_id().size(), 36u);
  EXPECT_NE(about.network_namespace(), 0u);
  EXPECT_EQ(about.device(), "cpu");
  EXPECT_EQ(about.memory_bytes(), 1 << 30);
  EXPECT_EQ(about.threads(), 1);

  ASSERT_TRUE(bed.admit(*session)) << log();
  const auto loaded = bed.load(*session, {{0, 3, 5}, {1, 2}});
  ASSERT_TRUE(loaded.has_loaded()) << loaded.ShortDebugString();
  EXPECT_EQ(loaded.loaded().resident_bytes(), static_cast<int64_t>(5 * bed.whole().expert_bytes()));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(bed.compare(0, {0, 3, 5}), "");
    EXPECT_EQ(bed.compare(1, {1, 2}), "");
  }
  // Another load while it serves; heartbeats count what happened.
  ASSERT_TRUE(bed.load(*session, {{4}, {}, {}, {0, 7}}).has_loaded());
  EXPECT_EQ(bed.compare(3, {0, 7}), "");
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (session->last_heartbeat().frames() < 11 && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(20));
  const v1::WorkerHeartbeat beat = session->last_heartbeat();
  EXPECT_GE(beat.frames(), 11);
  EXPECT_GE(beat.terms(), beat.rows());
  EXPECT_EQ(beat.resident_bytes(), static_cast<int64_t>(8 * bed.whole().expert_bytes()));
  EXPECT_EQ(beat.refused_frames(), 0);
  EXPECT_EQ(beat.declined_terms(), 0);
  EXPECT_FALSE(worker->wait(absl::ZeroDuration()).has_value()) << log();
}

TEST_F(ExpertWorkerProcessTest, RefusedItEndsWithTheCoordinatorsSentence) {
  ScriptedCoordinator coordinator(
      {.refusal = absl::FailedPreconditionError("w9 computes other bits than this coordinator")});
  auto worker = start(coordinator.address(), {"--name", "w9"});
  EXPECT_EQ(worker->wait(), 2);
  EXPECT_THAT(log(), HasSubstr("w9 computes other bits than this coordinator"));
}

TEST_F(ExpertWorkerProcessTest, LoadsBeyondItsMemoryFailWithBothNumbers) {
  ScriptedCoordinator coordinator;
  WorkerLinksBed bed(demo_model());
  const auto bytes = static_cast<int64_t>(bed.whole().expert_bytes());
  auto worker = start(coordinator.address(), {"--memory", absl::StrCat(2 * bytes)});
  auto session = coordinator.accept();
  ASSERT_NE(session, nullptr) << log();
  ASSERT_TRUE(bed.admit(*session));
  const auto failed = bed.load(*session, {{0, 1, 2}});
  ASSERT_TRUE(failed.has_load_failed());
  EXPECT_THAT(failed.load_failed().reason(), testing::AllOf(HasSubstr(absl::StrCat(3 * bytes)),
                                                            HasSubstr(absl::StrCat(2 * bytes))));
  ASSERT_TRUE(bed.load(*session, {{0, 1}}).has_loaded()) << "it stays";
  EXPECT_EQ(bed.compare(0, {0, 1}), "");
}

TEST_F(ExpertWorkerProcessTest, TlsCertificatesAndTokens) {
  const std::string folder = folder_.path() + "/";
  const TestAuthority authority(folder, "ca");
  authority.issue("server");
  authority.issue("worker");
  folder_.write("token", "a-token-of-the-workers\n");
  folder_.write("other", "another-token-altogether\n");
  ScriptedCoordinator coordinator({.token = "a-token-of-the-workers",
                                   .tls_cert = folder + "server.pem",
                                   .tls_key = folder + "server.key",
                                   .client_ca = authority.path()});
  const auto flags = [&](const std::string& token) {
    return std::vector<std::string>{"--ca",
                                    authority.path(),
                                    "--tls-cert",
                                    folder + "worker.pem",
                                    "--tls-key",
                                    folder + "worker.key",
                                    "--token-file",
                                    folder + token,
                                    "--rejoin-timeout",
                                    "2"};
  };
  {
    auto worker = start(coordinator.address(), flags("token"));
    EXPECT_NE(coordinator.accept(), nullptr) << log();
  }
  EXPECT_EQ(start(coordinator.address(), flags("other"))->wait(), 2);
  EXPECT_THAT(log(), HasSubstr("not the workers' token"));
  // No certificate: the connection itself fails, which another try may heal.
  EXPECT_EQ(start(coordinator.address(), {"--ca", authority.path(), "--token-file",
                                          folder + "token", "--rejoin-timeout", "0.5"})
                ->wait(),
            1);
}

TEST_F(ExpertWorkerProcessTest, BadSettingsAreNamedBeforeAnythingIsDialled) {
  const auto refusal = [&](const std::string& join, const std::vector<std::string>& more) {
    EXPECT_EQ(start(join, more)->wait(), 2) << log();
    return log();
  };
  const std::string far = "192.0.2.1:50052";
  EXPECT_THAT(refusal(far, {}), HasSubstr("add --ca and --token-file, or say --insecure"));
  EXPECT_THAT(refusal(far, {"--insecure"}), HasSubstr("--trusted-network"));
  EXPECT_THAT(refusal("127.0.0.1", {}), HasSubstr("expected HOST:PORT"));
  EXPECT_THAT(refusal("127.0.0.1:1", {"--model", "/none"}), HasSubstr("--model /none"));
  EXPECT_THAT(refusal("127.0.0.1:1", {"--model", source_dir() + "/tests"}),
              HasSubstr("config.json"));
  EXPECT_THAT(refusal("127.0.0.1:1", {"--model", source_dir() + "/models/demo/draft"}),
              HasSubstr("has no experts"));
  EXPECT_THAT(refusal("127.0.0.1:1", {"--token-file", "/none"}), HasSubstr("--token-file"));
  EXPECT_THAT(refusal("127.0.0.1:1", {"--tls-cert", "x"}), HasSubstr("--tls-key"));
  EXPECT_THAT(refusal("127.0.0.1:1", {"--memory", "lots"}), HasSubstr("--memory"));
}

}  // namespace
}  // namespace brigade::tests
