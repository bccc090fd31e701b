// Streams through a real channel: order, stop strings, cancellation, deadlines, full queues, slow
// readers, drain, resumption.
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/tokenizer/utf8.h"
#include "tests/support/test_env.h"
#include "tests/support/test_server.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

bool no_blocks_in_use(const TestServer& server) {
  const runtime::GeneratorStatus status = server.generator->status();
  return status.kv_blocks_in_use == 0 && status.running_sequences == 0 &&
         status.waiting_requests == 0;
}

TEST(GenerateCallTest, StreamAndOnceAgree) {
  TestServer server;
  v1::GenerateRequest request = request_of({1, 2, 3}, 40);
  request.set_num_sequences(3);
  request.mutable_sampling()->set_seed(9);
  request.mutable_sampling()->set_logprobs(2);
  const StreamResult streamed = run_stream(*server.stub, request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_EQ(streamed.ids.size(), 120u);
  ASSERT_EQ(streamed.finished.size(), 3u);
  EXPECT_EQ(streamed.started.settings().seed(), 9u);
  EXPECT_TRUE(streamed.started.settings().reproducible());

  grpc::ClientContext context;
  v1::GenerateOnceResponse once;
  const grpc::Status status = server.stub->GenerateOnce(&context, request, &once);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(once.sequences_size(), 3);
  size_t text_bytes = 0;
  for (const v1::Sequence& sequence : once.sequences()) {
    EXPECT_EQ(sequence.token_ids_size(), 40);
    EXPECT_EQ(sequence.logprobs_size(), 40);
    EXPECT_EQ(sequence.logprobs(0).top_size(), 2);
    EXPECT_EQ(sequence.finished().reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(sequence.finished().usage().completion_tokens(), 40);
    EXPECT_EQ(sequence.finished().usage().prompt_tokens(), 3);
    text_bytes += sequence.text().size();
  }
  EXPECT_EQ(text_bytes, streamed.text.size());
}

TEST(GenerateCallTest, SeedIsDrawnAndReported) {
  TestServer server;
  const StreamResult first = run_stream(*server.stub, request_of({1}, 20));
  v1::GenerateRequest again = request_of({1}, 20);
  again.mutable_sampling()->set_seed(first.started.settings().seed());
  EXPECT_EQ(run_stream(*server.stub, again).ids, first.ids);
  EXPECT_NE(run_stream(*server.stub, request_of({1}, 20)).started.settings().seed(),
            first.started.settings().seed());
}

// vllm-project/vllm issue 3574: no part of a stop string that spans tokens is streamed.
TEST(GenerateCallTest, StopStringAcrossTokens) {
  const std::vector<int32_t> tokens = {word_id(0), word_id(1), word_id(2), 'G'};
  TestServer server({.script = [&](const auto&, int, int n) { return tokens[n % 4]; }}, {},
                    {"AB", "CD", "EF"});
  v1::GenerateRequest request = request_of({1}, 4);
  request.mutable_stop()->add_strings("DEFG");
  StreamResult result = run_stream(*server.stub, request);
  EXPECT_EQ(result.text, "ABC");
  ASSERT_EQ(result.finished.size(), 1u);
  EXPECT_EQ(result.finished[0].reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(result.finished[0].stop_string(), "DEFG");

  request.mutable_stop()->set_include_stop(true);
  EXPECT_EQ(run_stream(*server.stub, request).text, "ABCDEFG");

  request.mutable_stop()->set_strings(0, "DEX");
  result = run_stream(*server.stub, request);
  EXPECT_EQ(result.text, "ABCDEFG");
  EXPECT_EQ(result.finished[0].reason(), v1::FINISH_REASON_LENGTH);
}

// protocolbuffers/protobuf issue 4970: raw bytes of tokens in a string field break the call.
TEST(GenerateCallTest, PiecesThatAreNotUtf8) {
  // Half an emoji, a lone lead byte, stray continuation bytes.
  const std::string bytes = "\xF0\x9F\x98\x80 \xC4 a\xFF\x80\xF0\x9F";
  TestServer server({.script = [&](const auto&, int, int n) {
    return static_cast<int32_t>(static_cast<uint8_t>(bytes[n]));
  }});
  v1::GenerateRequest request = request_of({0xC4, 0xFF}, static_cast<int64_t>(bytes.size()));
  request.mutable_sampling()->set_logprobs(5);
  const StreamResult result = run_stream(*server.stub, request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.ids.size(), bytes.size());
  EXPECT_TRUE(runtime::is_valid_utf8(result.text));
  EXPECT_THAT(result.text, HasSubstr("\xF0\x9F\x98\x80 "));
  EXPECT_THAT(result.text, HasSubstr("\xEF\xBF\xBD"));
}

TEST(GenerateCallTest, ErrorOfTheModelEndsTheCall) {
  TestServer server({.script = [](const auto&, int, int n) { return n < 3 ? 65 : -1; }});
  const StreamResult result = run_stream(*server.stub, request_of({1}, 20));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(result.ids.size(), 3u);
  EXPECT_TRUE(eventually([&] { return no_blocks_in_use(server); }));
}

TEST(GenerateCallTest, QueueFullIsRefusedAtOnce) {
  TestServer server({.max_running = 2, .max_waiting = 3, .step_time = absl::Milliseconds(20)});
  std::vector<std::thread> clients;
  std::atomic<int> good{0}, refused{0}, other{0};
  std::atomic<int64_t> slowest_refusal_ms{0};
  for (int i = 0; i < 30; ++i) {
    clients.emplace_back([&] {
      const absl::Time begin = absl::Now();
      const StreamResult result = run_stream(*server.stub, request_of({1}, 30));
      if (result.status.ok()) {
        ++good;
      } else if (result.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
        ++refused;
        const int64_t took = absl::ToInt64Milliseconds(absl::Now() - begin);
        slowest_refusal_ms = std::max<int64_t>(slowest_refusal_ms, took);
      } else {
        ++other;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(other, 0);
  EXPECT_GE(refused, 20) << "2 run, 3 wait";
  EXPECT_GE(good, 5);
  EXPECT_EQ(good + refused, 30);
  EXPECT_LT(slowest_refusal_ms, 600) << "an answer that was let in takes at least 600 ms";
  EXPECT_EQ(server.generator->status().requests_rejected, refused);
}

TEST(GenerateCallTest, Deadline) {
  TestServer server({.step_time = absl::Milliseconds(10)});
  const absl::Time begin = absl::Now();
  const StreamResult result =
      run_stream(*server.stub, request_of({1}, 10000), absl::Milliseconds(200));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
  EXPECT_FALSE(result.ids.empty());
  EXPECT_TRUE(eventually([&] { return no_blocks_in_use(server); }));

  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(100)));
  v1::GenerateOnceResponse once;
  EXPECT_EQ(server.stub->GenerateOnce(&context, request_of({1}, 10000), &once).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([&] { return no_blocks_in_use(server); }));
}

// Cancels streams and unary calls at random moments: before the request is out, queued, at any
// token.
TEST(GenerateCallTest, CancellationAtRandomMoments) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("generate_call_test", seed));
  TestServer server({.max_running = 4, .step_time = absl::Microseconds(200)});
  const int rounds = scaled(1000, 100);
  constexpr int kClients = 8;
  std::atomic<int> next{0}, cancelled{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937_64 random(seed * kClients + static_cast<uint64_t>(client));
      while (next++ < rounds) {
        v1::GenerateRequest request = request_of({1, 2, 3, 4}, 20000);
        request.set_num_sequences(1 + static_cast<int64_t>(random() % 3));
        grpc::ClientContext context;
        std::jthread canceller([&, wait = random() % 12000] {
          absl::SleepFor(absl::Microseconds(wait));
          context.TryCancel();
        });
        grpc::Status status;
        if (random() % 4 == 0) {
          v1::GenerateOnceResponse once;
          status = server.stub->GenerateOnce(&context, request, &once);
        } else {
          auto reader = server.stub->Generate(&context, request);
          v1::GenerateResponse message;
          while (reader->Read(&message)) {
          }
          status = reader->Finish();
        }
        cancelled += status.error_code() == grpc::StatusCode::CANCELLED;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(cancelled, rounds);
  EXPECT_TRUE(eventually([&] { return no_blocks_in_use(server); }));
  EXPECT_TRUE(run_stream(*server.stub, request_of({1}, 5)).status.ok());
}

// grpc/grpc issues 37715, 18739: a reader that stands still must cost bounded memory and nobody
// else.
TEST(GenerateCallTest, SlowReader) {
  TestServer server({.max_running = 64, .stream_capacity = 16});
  const auto stub = v1::Generation::NewStub(dial(server.server->address(), /*small_window=*/true));
  constexpr int kSlow = 20;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  v1::GenerateRequest endless = request_of({1, 2, 3}, 60000);
  endless.mutable_sampling()->set_logprobs(20);  // large messages
  for (int i = 0; i < kSlow; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub->Generate(contexts.back().get(), endless));
    v1::GenerateResponse message;
    ASSERT_TRUE(readers.back()->Read(&message));
  }
  // All have filled what is between us when the step loop makes no more tokens.
  ASSERT_TRUE(eventually([&] {
    const int64_t before = server.generator->status().generated_tokens;
    absl::SleepFor(absl::Milliseconds(100));
    return server.generator->status().generated_tokens == before;
  }));
  EXPECT_EQ(server.generator->status().running_sequences, kSlow) << "paused, not ended";
  const int64_t per_stream = server.generator->status().generated_tokens / kSlow;
  EXPECT_LT(per_stream, 2000) << "of 60,000";
  const size_t before = resident_bytes();
  const absl::Time begin = absl::Now();
  const StreamResult normal = run_stream(*server.stub, request_of({9}, 500));
  EXPECT_TRUE(normal.status.ok());
  EXPECT_EQ(normal.ids.size(), 500u);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_LT(resident_bytes(), before + (8u << 20));
  // The first slow reader reads on and gets every token in order.
  v1::GenerateResponse message;
  for (int i = 0; i < 3000; ++i) ASSERT_TRUE(readers[0]->Read(&message));
  for (auto& context : contexts) context->TryCancel();
  for (auto& reader : readers) reader->Finish();
  EXPECT_TRUE(eventually([&] { return no_blocks_in_use(server); }));
}

TEST(GenerateCallTest, ReaderThatNeverReadsIsCut) {
  runtime::DoorOptions door;
  door.max_reader_stall = absl::Milliseconds(300);
  TestServer server({}, door);
  grpc::ClientContext context;
  v1::GenerateRequest endless = request_of({1}, 60000);
  endless.mutable_sampling()->set_logprobs(20);
  auto reader = server.stub->Generate(&context, endless);
  EXPECT_TRUE(eventually([&] { return server.generator->status().running_sequences == 1; }));
  EXPECT_TRUE(eventually([&] { return no_blocks_in_use(server); })) << "cut by the server";
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST(GenerateCallTest, DrainLetsStreamsFinish) {
  TestServer server({.step_time = absl::Milliseconds(2)});
  StreamResult open;
  std::thread client([&] { open = run_stream(*server.stub, request_of({1}, 100)); });
  ASSERT_TRUE(eventually([&] { return server.generator->status().running_sequences == 1; }));
  std::atomic<bool> drained{false};
  std::thread stopper([&] { drained = server.server->drain(absl::Now() + absl::Seconds(10)); });
  ASSERT_TRUE(eventually([&] { return server.state.health().draining; }));
  const StreamResult late = run_stream(*server.stub, request_of({1}, 5));
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(late.status.error_message(), HasSubstr("draining"));
  client.join();
  stopper.join();
  EXPECT_TRUE(open.status.ok()) << open.status.error_message();
  EXPECT_EQ(open.ids.size(), 100u);
  EXPECT_TRUE(drained);
}

TEST(GenerateCallTest, StreamsPastTheGraceTimeEndWithAReason) {
  TestServer server({.step_time = absl::Milliseconds(5)});
  StreamResult open;
  std::thread client([&] { open = run_stream(*server.stub, request_of({1}, 50000)); });
  ASSERT_TRUE(eventually([&] { return server.generator->status().running_sequences == 1; }));
  EXPECT_FALSE(server.server->drain(absl::Now() + absl::Milliseconds(100)));
  server.server->stop();
  client.join();
  EXPECT_EQ(open.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(open.status.error_message(), HasSubstr("stopping"));
  EXPECT_TRUE(eventually([&] { return no_blocks_in_use(server); }));
}

TEST(GenerateCallTest, GeneratedSoFarGoesOn) {
  const std::string text = "na\xC3\xAFve \xF0\x9F\x98\x80 end";
  TestServer server({.script = [&](const auto&, int, int n) {
    return static_cast<int32_t>(static_cast<uint8_t>(text[static_cast<size_t>(n) % text.size()]));
  }});
  v1::GenerateRequest request = request_of({1, 2}, static_cast<int64_t>(text.size()));
  request.mutable_stop()->add_strings("never here");
  const StreamResult whole = run_stream(*server.stub, request);
  ASSERT_EQ(whole.text, text);
  for (size_t cut = 1; cut + 1 < text.size(); ++cut) {
    SCOPED_TRACE(cut);
    // What an interrupted stream has shown after `cut` tokens.
    std::string shown;
    grpc::ClientContext context;
    auto reader = server.stub->Generate(&context, request);
    v1::GenerateResponse message;
    v1::GenerateRequest rest = request;
    while (rest.generated_so_far_size() < static_cast<int>(cut) && reader->Read(&message)) {
      if (!message.has_token()) continue;
      shown += message.token().text();
      rest.add_generated_so_far(message.token().id());
    }
    context.TryCancel();
    while (reader->Read(&message)) {
    }
    reader->Finish();
    const StreamResult resumed = run_stream(*server.stub, rest);
    ASSERT_TRUE(resumed.status.ok()) << resumed.status.error_message();
    EXPECT_EQ(shown + resumed.text, text);
    EXPECT_EQ(resumed.finished.at(0).usage().completion_tokens(),
              static_cast<int64_t>(text.size()));
  }
}

}  // namespace
}  // namespace brigade::tests
