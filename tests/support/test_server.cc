#include "tests/support/test_server.h"

#include <utility>

#include "kernels/core/check.h"

namespace brigade::tests {

TestServer::TestServer(ScriptedOptions scripted, runtime::DoorOptions door,
                       const std::vector<std::string>& words, bool publish_now)
    : tokenizer(make_byte_tokenizer(words)) {
  auto model = std::make_shared<runtime::ServedModel>();
  model->name = "scripted";
  model->limits.vocab_size = tokenizer->vocab_size();
  model->limits.max_context = 1 << 16;
  model->eos_tokens = scripted.eos_tokens;
  model->encode = [this](std::string_view text, bool add_special_tokens,
                         bool parse_control_tokens) {
    return tokenizer->encode(text, {.add_special_tokens = add_special_tokens,
                                    .parse_control_tokens = parse_control_tokens});
  };
  model->piece = [this](int32_t token) { return tokenizer->token_bytes(token); };
  state.set_model(model);
  scripted.tokenizer = tokenizer.get();
  generator = std::make_shared<ScriptedGenerator>(std::move(scripted));
  if (door.listen == runtime::DoorOptions().listen) door.listen = "127.0.0.1:0";
  auto started = runtime::GrpcServer::start(door, &state, &observer);
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", std::string(started.status().message()).c_str());
  }
  CHECK(started.ok());
  server = *std::move(started);
  channel = dial(server->address());
  stub = v1::Generation::NewStub(channel);
  if (publish_now) publish();
}

TestServer::~TestServer() { server->stop(); }

void TestServer::publish() { state.set_generator(generator); }

std::shared_ptr<grpc::Channel> dial(const std::string& address, bool small_window) {
  grpc::ChannelArguments arguments;
  if (small_window) arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

v1::GenerateRequest request_of(std::vector<int64_t> ids, int64_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.set_max_tokens(max_tokens);
  return request;
}

StreamResult run_stream(v1::Generation::Stub& stub, const v1::GenerateRequest& request,
                        absl::Duration deadline) {
  StreamResult result;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
  auto reader = stub.Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    if (message.has_started()) result.started = message.started();
    if (message.has_token()) {
      result.ids.push_back(message.token().id());
      result.text += message.token().text();
    }
    if (message.has_finished()) {
      result.text += message.finished().text();
      result.finished.push_back(message.finished());
    }
  }
  result.status = reader->Finish();
  return result;
}

}  // namespace brigade::tests
