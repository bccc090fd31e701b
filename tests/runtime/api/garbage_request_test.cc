// Requests that must be refused at the door, with the field named, while the server goes on serving
// (vllm-project/vllm issue 54195: one id outside the vocabulary killed the engine for everybody).
#include <grpcpp/generic/generic_stub.h>

#include <functional>
#include <future>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_server.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;

constexpr int64_t kVocab = 257;  // 256 bytes and <end>
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Case {
  const char* name;
  std::function<void(v1::GenerateRequest&)> spoil;
  const char* field;
};

v1::Sampling& sampling(v1::GenerateRequest& r) { return *r.mutable_sampling(); }

void set_ids(v1::GenerateRequest& r, std::vector<int64_t> ids) {
  r.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
}

const Case kCases[] = {
    {"no prompt", [](auto& r) { r.clear_prompt(); }, "prompt"},
    {"empty ids", [](auto& r) { set_ids(r, {}); }, "token_ids.ids"},
    {"empty text", [](auto& r) { r.set_text(""); }, "text"},
    {"id -1",
     [](auto& r) {
       set_ids(r, {1, -1});
     },
     "token_ids.ids[1]"},
    {"id at vocabulary", [](auto& r) { set_ids(r, {kVocab}); }, "token_ids.ids[0]"},
    {"id wraps to 5", [](auto& r) { set_ids(r, {(1ll << 32) + 5}); }, "token_ids.ids[0]"},
    {"id wraps to 0",
     [](auto& r) {
       set_ids(r, {1, 2, 1ll << 32});
     },
     "token_ids.ids[2]"},
    {"ids with a text flag", [](auto& r) { r.set_parse_control_tokens(true); },
     "parse_control_tokens"},
    {"NaN temperature", [](auto& r) { sampling(r).set_temperature(kNaN); }, "sampling.temperature"},
    {"infinite temperature", [](auto& r) { sampling(r).set_temperature(kInf); },
     "sampling.temperature"},
    {"negative temperature", [](auto& r) { sampling(r).set_temperature(-1); },
     "sampling.temperature"},
    {"top_k -2", [](auto& r) { sampling(r).set_top_k(-2); }, "sampling.top_k"},
    {"top_k wraps", [](auto& r) { sampling(r).set_top_k(1ll << 32); }, "sampling.top_k"},
    {"top_p 0", [](auto& r) { sampling(r).set_top_p(0); }, "sampling.top_p"},
    {"top_p 1.1", [](auto& r) { sampling(r).set_top_p(1.1); }, "sampling.top_p"},
    {"top_p NaN", [](auto& r) { sampling(r).set_top_p(kNaN); }, "sampling.top_p"},
    {"min_p -0.1", [](auto& r) { sampling(r).set_min_p(-0.1); }, "sampling.min_p"},
    {"min_p 2", [](auto& r) { sampling(r).set_min_p(2); }, "sampling.min_p"},
    {"repetition 0", [](auto& r) { sampling(r).set_repetition_penalty(0); },
     "sampling.repetition_penalty"},
    {"presence NaN", [](auto& r) { sampling(r).set_presence_penalty(kNaN); },
     "sampling.presence_penalty"},
    {"frequency inf", [](auto& r) { sampling(r).set_frequency_penalty(kInf); },
     "sampling.frequency_penalty"},
    {"bias id", [](auto& r) { sampling(r).add_logit_bias()->set_token_id(kVocab); },
     "sampling.logit_bias[0].token_id"},
    {"bias id wraps",
     [](auto& r) {
       sampling(r).add_logit_bias();
       sampling(r).add_logit_bias()->set_token_id((1ll << 32) + 1);
     },
     "sampling.logit_bias[1].token_id"},
    {"bias NaN", [](auto& r) { sampling(r).add_logit_bias()->set_bias(kNaN); },
     "sampling.logit_bias[0].bias"},
    {"bias too large for a float", [](auto& r) { sampling(r).add_logit_bias()->set_bias(1e300); },
     "sampling.logit_bias[0].bias"},
    {"allowed id", [](auto& r) { sampling(r).add_allowed_tokens(-5); },
     "sampling.allowed_tokens[0]"},
    {"banned id", [](auto& r) { sampling(r).add_banned_tokens(1ll << 40); },
     "sampling.banned_tokens[0]"},
    {"many banned",
     [](auto& r) {
       for (int i = 0; i < 5000; ++i) sampling(r).add_banned_tokens(1);
     },
     "sampling.banned_tokens"},
    {"logprobs -1", [](auto& r) { sampling(r).set_logprobs(-1); }, "sampling.logprobs"},
    {"logprobs 1000", [](auto& r) { sampling(r).set_logprobs(1000); }, "sampling.logprobs"},
    {"stop id", [](auto& r) { r.mutable_stop()->add_token_ids(kVocab); }, "stop.token_ids[0]"},
    {"stop id with min_tokens",
     [](auto& r) {
       r.set_min_tokens(1);
       r.mutable_stop()->add_token_ids((1ll << 32) + 7);
     },
     "stop.token_ids[0]"},
    {"empty stop", [](auto& r) { r.mutable_stop()->add_strings(""); }, "stop.strings[0]"},
    {"long stop", [](auto& r) { r.mutable_stop()->add_strings(std::string(5000, 'x')); },
     "stop.strings[0]"},
    {"many stops",
     [](auto& r) {
       for (int i = 0; i < 100; ++i) r.mutable_stop()->add_strings("x");
     },
     "stop.strings"},
    {"max_tokens 0", [](auto& r) { r.set_max_tokens(0); }, "max_tokens"},
    {"max_tokens -1", [](auto& r) { r.set_max_tokens(-1); }, "max_tokens"},
    {"max_tokens past the context", [](auto& r) { r.set_max_tokens(1 << 20); }, "max_tokens"},
    {"max_tokens wraps", [](auto& r) { r.set_max_tokens((1ll << 32) + 5); }, "max_tokens"},
    {"min over max",
     [](auto& r) {
       r.set_min_tokens(6);
       r.set_max_tokens(5);
     },
     "min_tokens"},
    {"min_tokens -1", [](auto& r) { r.set_min_tokens(-1); }, "min_tokens"},
    {"n 0", [](auto& r) { r.set_num_sequences(0); }, "num_sequences"},
    {"draft mode", [](auto& r) { r.mutable_speculation()->set_mode(v1::Speculation::Mode(9)); },
     "speculation.mode"},
    {"no draft depth",
     [](auto& r) { r.mutable_speculation()->set_mode(v1::Speculation::MODE_FIXED); },
     "speculation.depth"},
    {"draft depth wraps",
     [](auto& r) {
       r.mutable_speculation()->set_mode(v1::Speculation::MODE_FIXED);
       r.mutable_speculation()->set_depth((1ll << 32) + 1);
     },
     "speculation.depth"},
    {"n 1000", [](auto& r) { r.set_num_sequences(1000); }, "num_sequences"},
    {"n wraps", [](auto& r) { r.set_num_sequences((1ll << 32) + 1); }, "num_sequences"},
    {"resume with two",
     [](auto& r) {
       r.set_num_sequences(2);
       r.add_generated_so_far(1);
     },
     "generated_so_far"},
    {"resume id", [](auto& r) { r.add_generated_so_far(-1); }, "generated_so_far[0]"},
    {"resume past max_tokens",
     [](auto& r) {
       for (int i = 0; i < 5; ++i) r.add_generated_so_far(1);
     },
     "generated_so_far"},
    {"resume after the end",
     [](auto& r) {
       r.add_generated_so_far(1);
       r.add_generated_so_far(256);
     },
     "generated_so_far[1]"},
    {"long request id", [](auto& r) { r.set_request_id(std::string(1000, 'x')); }, "request_id"},
    {"long salt", [](auto& r) { r.set_cache_salt(std::string(1000, 'x')); }, "cache_salt"},
};

class GarbageRequestTest : public testing::Test {
 protected:
  GarbageRequestTest() : server_({.eos_tokens = {256}}) {}

  void expect_serving() {
    v1::GenerateRequest good = request_of({1, 2, 3}, 5);
    good.mutable_stop()->set_ignore_eos(true);
    const StreamResult result = run_stream(*server_.stub, good);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.ids.size(), 5u);
  }

  TestServer server_;
};

TEST_F(GarbageRequestTest, EveryFieldIsNamed) {
  for (const Case& test : kCases) {
    SCOPED_TRACE(test.name);
    v1::GenerateRequest request = request_of({1, 2, 3}, 5);
    test.spoil(request);
    const StreamResult streamed = run_stream(*server_.stub, request);
    EXPECT_EQ(streamed.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(streamed.status.error_message(), HasSubstr(test.field));
    EXPECT_TRUE(streamed.ids.empty());

    grpc::ClientContext context;
    v1::GenerateOnceResponse response;
    const grpc::Status once = server_.stub->GenerateOnce(&context, request, &response);
    EXPECT_EQ(once.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(once.error_message(), streamed.status.error_message());
  }
  EXPECT_EQ(server_.generator->status().requests_accepted, 0) << "refused before scheduling";
  expect_serving();
}

// Sends bytes that are no message of ours, past the generated code.
grpc::Status send_bytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& bytes) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> answered;
  stub.UnaryCall(&context, "/brigade.v1.Generation/GenerateOnce", grpc::StubOptions(), &request,
                 &response, [&](grpc::Status status) { answered.set_value(std::move(status)); });
  return answered.get_future().get();
}

TEST_F(GarbageRequestTest, BytesThatAreNoMessage) {
  EXPECT_EQ(send_bytes(server_.channel, std::string("\x0a\xff\xff\xff\xff\x0f", 6)).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  // Unknown group fields nested 100,000 deep.
  const grpc::Status deep = send_bytes(server_.channel, std::string(100000, '\xf3'));
  EXPECT_EQ(deep.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // text (field 1) that is not UTF-8 (protocolbuffers/protobuf issue 4970).
  const grpc::Status text = send_bytes(server_.channel, std::string("\x0a\x02\xc4\xff", 4));
  EXPECT_EQ(text.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(text.error_message(), HasSubstr("GenerateRequest.text: not valid UTF-8"));
  // stop (field 7) with a string (field 1) that is not UTF-8.
  const grpc::Status stop = send_bytes(server_.channel, std::string("\x3a\x03\x0a\x01\xff", 5));
  EXPECT_THAT(stop.error_message(), HasSubstr("Stop.strings: not valid UTF-8"));
  expect_serving();
}

TEST_F(GarbageRequestTest, TooLargeMessage) {
  v1::GenerateRequest request = request_of({1}, 5);
  request.set_text(std::string(8 << 20, 'a'));
  const StreamResult result = run_stream(*server_.stub, request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  expect_serving();
}

TEST_F(GarbageRequestTest, TextCannotBecomeControlTokens) {
  v1::GenerateRequest request;
  request.set_text("a<end>b");
  request.set_max_tokens(1);
  request.mutable_stop()->set_ignore_eos(true);
  EXPECT_EQ(run_stream(*server_.stub, request).started.prompt_tokens(), 7);
  request.set_parse_control_tokens(true);
  EXPECT_EQ(run_stream(*server_.stub, request).started.prompt_tokens(), 3);
}

}  // namespace
}  // namespace brigade::tests
