// The whole server in this process on the demo model: real engine, real channel. What must hold
// with a real step loop behind the door: nothing leaks by cancelling, bounds are kept, answers do
// not depend on the company they have.
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/api/grpc_server.h"
#include "runtime/app/model_host.h"
#include "tests/support/test_env.h"
#include "tests/support/test_server.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;

class EngineServer {
 public:
  explicit EngineServer(const std::function<void(runtime::CoordinatorConfig&)>& change = {}) {
    runtime::CoordinatorConfig config;
    config.model = source_dir() + "/models/demo/target";
    config.threads = 1;
    config.kv_memory_bytes = 16 << 20;
    config.door.listen = "127.0.0.1:0";
    if (change) change(config);
    if (absl::Status status = runtime::check(&config); !status.ok()) ADD_FAILURE() << status;
    auto host = runtime::ModelHost::open(config);
    if (!host.ok()) ADD_FAILURE() << host.status();
    host_ = *std::move(host);
    state_.set_model(host_->served());
    server_ = *runtime::GrpcServer::start(config.door, &state_, &observer_);
    runtime::LoadingDisplay display(&state_);
    if (absl::Status status = host_->load(config, display); !status.ok()) ADD_FAILURE() << status;
    state_.set_generator(host_->generator());
    stub = v1::Generation::NewStub(dial(server_->address()));
    if (!eventually([&] { return state_.health().ready; })) ADD_FAILURE() << "never ready";
  }
  ~EngineServer() {
    server_->stop();
    host_->stop();
  }

  runtime::GeneratorStatus status() const { return host_->generator()->status(); }
  bool nothing_held() const {
    const runtime::GeneratorStatus now = status();
    return now.kv_blocks_in_use == 0 && now.running_sequences == 0 && now.waiting_requests == 0;
  }
  std::string address() const { return server_->address(); }

 private:
  RecordingObserver observer_;
  runtime::ServingState state_;
  std::unique_ptr<runtime::ModelHost> host_;
  std::unique_ptr<runtime::GrpcServer> server_;

 public:
  std::unique_ptr<v1::Generation::Stub> stub;
};

v1::GenerateRequest story(const std::string& text, int64_t max_tokens, uint64_t seed) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0.8);
  request.mutable_sampling()->set_seed(seed);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

std::string long_text(int words) {
  std::string text = "Once upon a time";
  for (int i = 0; i < words; ++i) text += i % 7 == 0 ? " the red boat" : " and then";
  return text;
}

grpc::Status cancel_at_random(v1::Generation::Stub& stub, std::mt19937_64& random) {
  // Long prompts are cancelled in mid-prefill, others while they wait or decode.
  v1::GenerateRequest request = story(long_text(static_cast<int>(random() % 80)), 120, random());
  request.set_num_sequences(1 + static_cast<int64_t>(random() % 3));
  grpc::ClientContext context;
  // Mostly early, now and then after the answer has grown long.
  const uint64_t limit_us = random() % 5 == 0 ? 200'000 : 20'000;
  std::jthread canceller([&, wait = random() % limit_us] {
    absl::SleepFor(absl::Microseconds(wait));
    context.TryCancel();
  });
  if (random() % 4 == 0) {
    v1::GenerateOnceResponse once;
    return stub.GenerateOnce(&context, request, &once);
  }
  auto reader = stub.Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  return reader->Finish();
}

TEST(EngineServerTest, CancellationAtRandomMomentsLeaksNothing) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("engine_server_test", seed));
  EngineServer server([](auto& config) {
    config.engine.max_running_sequences = 6;
    config.kv_memory_bytes = 3 << 19;  // small enough for preemptions
  });
  const int rounds = scaled(1000, 100);
  constexpr int kClients = 8;
  std::atomic<int> next{0}, cancelled{0}, finished{0}, other{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937_64 random(seed * kClients + static_cast<uint64_t>(client));
      while (next++ < rounds) {
        const grpc::Status status = cancel_at_random(*server.stub, random);
        cancelled += status.error_code() == grpc::StatusCode::CANCELLED;
        finished += status.ok();
        other += !status.ok() && status.error_code() != grpc::StatusCode::CANCELLED;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(other, 0);
  EXPECT_GE(cancelled, rounds / 2) << "most are cut while something of them is under way";
  EXPECT_TRUE(eventually([&] { return server.nothing_held(); }))
      << server.status().kv_blocks_in_use << " blocks in use";
  const runtime::GeneratorStatus status = server.status();
  std::printf("%d cancelled, %d finished; largest batch %d, %lld mixed steps, %lld preemptions\n",
              cancelled.load(), finished.load(), status.max_sequences_in_step,
              static_cast<long long>(status.mixed_steps),
              static_cast<long long>(status.preemptions));
  EXPECT_TRUE(run_stream(*server.stub, story("Once", 5, 1)).status.ok());
}

TEST(EngineServerTest, QueueFullIsRefusedAtOnceAndCountersMatch) {
  EngineServer server([](auto& config) {
    config.engine.max_running_sequences = 4;
    config.engine.max_waiting_requests = 8;
  });
  std::vector<std::thread> clients;
  std::atomic<int> good{0}, refused{0}, other{0};
  for (int i = 0; i < 60; ++i) {
    clients.emplace_back([&, i] {
      const grpc::Status status =
          run_stream(*server.stub, story("Once upon a time", 200, static_cast<uint64_t>(i))).status;
      good += status.ok();
      refused += status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
      other += !status.ok() && status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(other, 0);
  EXPECT_EQ(good + refused, 60);
  EXPECT_GE(good, 12);
  EXPECT_GE(refused, 1);
  const runtime::GeneratorStatus status = server.status();
  EXPECT_EQ(status.requests_rejected, refused);
  EXPECT_EQ(status.requests_accepted, good);
  EXPECT_EQ(status.requests_finished, good);
}

TEST(EngineServerTest, CanNeverFit) {
  EngineServer server([](auto& config) { config.kv_memory_bytes = 1 << 20; });
  const StreamResult result = run_stream(*server.stub, story(long_text(100), 400, 1));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(result.status.error_message(), HasSubstr("KV"));
  EXPECT_TRUE(run_stream(*server.stub, story("Once", 5, 1)).status.ok());
}

TEST(EngineServerTest, DeadlineWhileQueuedAndWhileDecoding) {
  EngineServer server([](auto& config) { config.engine.max_running_sequences = 1; });
  std::thread first(
      [&] { EXPECT_TRUE(run_stream(*server.stub, story("Once", 1000, 3)).status.ok()); });
  ASSERT_TRUE(eventually([&] { return server.status().running_sequences == 1; }));
  const StreamResult queued =
      run_stream(*server.stub, story("Twice", 1000, 4), absl::Milliseconds(30));
  EXPECT_EQ(queued.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  first.join();
  const StreamResult decoding =
      run_stream(*server.stub, story("Twice", 1000, 4), absl::Milliseconds(60));
  EXPECT_EQ(decoding.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([&] { return server.nothing_held(); }));
}

// A seeded answer is the same alone, in company, beside readers that stand still, and resumed.
TEST(EngineServerTest, CompanyDoesNotShow) {
  EngineServer server([](auto& config) { config.engine.stream_capacity = 8; });
  const v1::GenerateRequest request = story("Once upon a time there was a", 120, 42);
  const StreamResult alone = run_stream(*server.stub, request);
  ASSERT_TRUE(alone.status.ok()) << alone.status.error_message();

  const auto slow_stub = v1::Generation::NewStub(dial(server.address(), /*small_window=*/true));
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> slow;
  for (int i = 0; i < 6; ++i) {
    v1::GenerateRequest endless = story("The slow", 1000, static_cast<uint64_t>(i));
    endless.mutable_sampling()->set_logprobs(20);
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    slow.push_back(slow_stub->Generate(contexts.back().get(), endless));
  }
  ASSERT_TRUE(eventually([&] { return server.status().paused_for_reader > 0; }));
  const StreamResult beside = run_stream(*server.stub, request);
  EXPECT_EQ(beside.text, alone.text);
  EXPECT_EQ(beside.ids, alone.ids);

  v1::GenerateRequest rest = request;
  for (int i = 0; i < 50; ++i) rest.add_generated_so_far(alone.ids[static_cast<size_t>(i)]);
  const StreamResult resumed = run_stream(*server.stub, rest);
  EXPECT_EQ(std::vector<int64_t>(alone.ids.begin() + 50, alone.ids.end()), resumed.ids);
  EXPECT_EQ(alone.text.substr(alone.text.size() - resumed.text.size()), resumed.text);

  for (auto& context : contexts) context->TryCancel();
  for (auto& reader : slow) reader->Finish();
  EXPECT_TRUE(eventually([&] { return server.nothing_held(); }));
}

}  // namespace
}  // namespace brigade::tests
