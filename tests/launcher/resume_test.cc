// The client's half of a broken stream: what arrived is sent back and the answer goes on.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "launcher/client.h"
#include "launcher/exit_codes.h"
#include "launcher/resumable_generation.h"
#include "tests/support/test_server.h"

namespace brigade::tests {
namespace {

using launcher::Client;
using launcher::ResumableGeneration;

struct Collected {
  std::string text;
  std::vector<int64_t> ids;
  int finished = 0, retries = 0;
  uint64_t seed = 0;

  bool take(const v1::GenerateResponse& message) {
    if (message.has_started()) seed = message.started().settings().seed();
    finished += message.has_finished();
    if (message.has_token()) ids.push_back(message.token().id());
    text += message.token().text() + message.finished().text();
    return true;
  }
};

std::unique_ptr<Client> client_of(const std::string& address) {
  auto client = Client::create({.server = address});
  EXPECT_TRUE(client.ok());
  return *std::move(client);
}

launcher::ResumeOptions quick() {
  return {.max_retries = 12,
          .first_delay = absl::Milliseconds(20),
          .max_delay = absl::Milliseconds(200)};
}

absl::Status generate(Client& client, const v1::GenerateRequest& request, Collected* collected,
                      const std::atomic<bool>* interrupted = nullptr) {
  ResumableGeneration generation(
      &client, request, quick(),
      [&](const v1::GenerateResponse& message) { return collected->take(message); },
      [&](const absl::Status&, absl::Duration) { ++collected->retries; });
  return generation.run(absl::Now() + absl::Seconds(20), interrupted);
}

std::unique_ptr<TestServer> serve_on(const std::string& address) {
  runtime::DoorOptions door;
  door.listen = address;
  return std::make_unique<TestServer>(ScriptedOptions{.step_time = absl::Milliseconds(1)}, door);
}

// The server goes away three times in mid-stream.
void expect_unbroken(const v1::GenerateRequest& request) {
  std::unique_ptr<TestServer> server = serve_on("127.0.0.1:0");
  const std::string address = server->server->address();
  const auto client = client_of(address);
  Collected broken;
  absl::Status status;
  std::thread caller([&] { status = generate(*client, request, &broken); });
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(eventually([&] { return server->generator->status().generated_tokens > 50; }));
    server.reset();
    server = serve_on(address);
  }
  caller.join();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(broken.finished, 1);
  EXPECT_GE(broken.retries, 3);

  v1::GenerateRequest again = request;
  again.mutable_sampling()->set_seed(broken.seed);
  Collected whole;
  ASSERT_TRUE(generate(*client, again, &whole).ok());
  EXPECT_EQ(broken.ids, whole.ids);
  EXPECT_EQ(broken.text, whole.text);
}

TEST(ResumeTest, SeedOfTheClient) {
  v1::GenerateRequest request = request_of({5, 6, 7}, 300);
  request.mutable_sampling()->set_seed(77);
  expect_unbroken(request);
}

// The server draws the seed; the client learns it before the first token and keeps it.
TEST(ResumeTest, SeedOfTheServer) { expect_unbroken(request_of({5, 6, 7}, 300)); }

TEST(ResumeTest, NobodyThere) {
  const auto client = client_of("127.0.0.1:1");
  Collected collected;
  ResumableGeneration generation(
      client.get(), request_of({1}, 5), {.max_retries = 2, .first_delay = absl::Milliseconds(10)},
      [&](const v1::GenerateResponse& message) { return collected.take(message); },
      [&](const absl::Status&, absl::Duration) { ++collected.retries; });
  const absl::Status status = generation.run(absl::Now() + absl::Seconds(10), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(launcher::exit_code_of(status), launcher::kUnreachable);
  EXPECT_EQ(collected.retries, 2);
}

TEST(ResumeTest, RefusalsAreNotRetried) {
  TestServer server;
  const auto client = client_of(server.server->address());
  Collected collected;
  v1::GenerateRequest request = request_of({1}, 5);
  request.mutable_sampling()->set_top_p(2);
  const absl::Status status = generate(*client, request, &collected);
  EXPECT_EQ(launcher::exit_code_of(status), launcher::kBadUsage);
  EXPECT_EQ(collected.retries, 0);
}

TEST(ResumeTest, InterruptEndsTheCall) {
  TestServer server({.step_time = absl::Milliseconds(5)});
  const auto client = client_of(server.server->address());
  std::atomic<bool> interrupted{false};
  Collected collected;
  absl::Status status;
  std::thread caller(
      [&] { status = generate(*client, request_of({1}, 50000), &collected, &interrupted); });
  ASSERT_TRUE(eventually([&] { return server.generator->status().generated_tokens > 5; }));
  interrupted = true;
  caller.join();
  EXPECT_EQ(launcher::exit_code_of(status), launcher::kInterrupted);
  EXPECT_TRUE(eventually([&] { return server.generator->status().kv_blocks_in_use == 0; }));
}

}  // namespace
}  // namespace brigade::tests
