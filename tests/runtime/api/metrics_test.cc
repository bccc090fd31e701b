// The metrics page: names, sums, a bounded number of series.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/api/metrics.h"

namespace brigade::tests {
namespace {

using runtime::GeneratorStatus;
using testing::HasSubstr;
using testing::Not;

class FixedGenerator final : public runtime::Generator {
 public:
  explicit FixedGenerator(GeneratorStatus status) : status_(std::move(status)) {}
  absl::StatusOr<std::shared_ptr<runtime::TokenStream>> submit(runtime::GenerateRequest) override {
    return absl::UnavailableError("fixed");
  }
  GeneratorStatus status() const override { return status_; }
  void start_drain() override {}
  bool idle() const override { return true; }

 private:
  const GeneratorStatus status_;
};

std::string http_get(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit = {.tv_sec = 5, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char bytes[4096];
      for (ssize_t n; (n = read(fd, bytes, sizeof(bytes))) > 0;) {
        answer.append(bytes, static_cast<size_t>(n));
      }
    }
  }
  close(fd);
  return answer;
}

GeneratorStatus busy() {
  GeneratorStatus status;
  status.ready = true;
  status.generated_tokens = 41;
  status.kv_blocks_in_use = 7;
  status.graph_launches = 12;
  // Four layers of 64 experts, two rows a token and layer, all to two experts.
  status.expert_rows.assign(4, std::vector<int64_t>(64, 0));
  for (auto& layer : status.expert_rows) layer[3] = layer[5] = 100;
  return status;
}

size_t count_lines(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(MetricsTest, CountersGaugesAndBalance) {
  runtime::ServingState state;
  runtime::Metrics metrics(&state);
  EXPECT_THAT(metrics.text(), HasSubstr("brigade_ready 0"));
  state.set_model(std::make_shared<runtime::ServedModel>());
  state.set_generator(std::make_shared<FixedGenerator>(busy()));
  metrics.first_token(absl::Milliseconds(30));
  metrics.token_gap(absl::Milliseconds(3));
  metrics.call_ended(absl::OkStatus(), absl::Seconds(1));
  metrics.call_ended(absl::CancelledError("x"), absl::Seconds(1));
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("brigade_ready 1"));
  EXPECT_THAT(text, HasSubstr("brigade_generated_tokens_total 41"));
  EXPECT_THAT(text, HasSubstr("brigade_kv_blocks_in_use 7"));
  EXPECT_THAT(text, HasSubstr("brigade_graph_launches_total 12"));
  EXPECT_THAT(text, HasSubstr("brigade_expert_rows_total 800"));
  EXPECT_THAT(text, HasSubstr("brigade_expert_balance{moe_layer=\"3\"} 32"));
  EXPECT_THAT(text, HasSubstr("brigade_time_to_first_token_seconds_count 1"));
  EXPECT_THAT(text, HasSubstr("brigade_time_between_tokens_seconds_count 1"));
  EXPECT_THAT(text, HasSubstr("brigade_calls_total{code=\"CANCELLED\"} 1"));
  // 4 layers of 64 experts must not make 256 series.
  EXPECT_EQ(count_lines(text, "moe_layer="), 4u);
  EXPECT_THAT(text, Not(HasSubstr("expert=")));
}

TEST(MetricsTest, SpeculationAndDraftWorkers) {
  runtime::ServingState state;
  runtime::Metrics metrics(&state);
  GeneratorStatus status = busy();
  status.drafting = {.drafted_by_position = {20, 10},
                     .accepted_by_position = {16, 5},
                     .run_ahead_drafts = 25,
                     .wait_seconds = 0.5};
  state.set_model(std::make_shared<runtime::ServedModel>());
  state.set_generator(std::make_shared<FixedGenerator>(status));
  EXPECT_THAT(metrics.text(), Not(HasSubstr("brigade_draft_workers")));
  state.set_drafts([] {
    runtime::DraftWorkersStatus drafts;
    drafts.workers.push_back({.worker_id = "d0", .serving = true, .open_sequences = 3});
    drafts.workers.push_back({.worker_id = "d1"});
    drafts.counters = {.chunks = 9, .stale = 2, .bad = 1, .refused = 4};
    return drafts;
  });
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("brigade_drafted_by_position_total{position=\"1\"} 10"));
  EXPECT_THAT(text, HasSubstr("brigade_accepted_by_position_total{position=\"0\"} 16"));
  EXPECT_THAT(text, HasSubstr("brigade_run_ahead_drafts_total 25"));
  EXPECT_THAT(text, HasSubstr("brigade_draft_wait_seconds_total 0.5"));
  EXPECT_THAT(text, HasSubstr("brigade_draft_workers 1"));
  EXPECT_THAT(text, HasSubstr("brigade_draft_sequences 3"));
  EXPECT_THAT(text, HasSubstr("brigade_draft_chunks_total 9"));
  EXPECT_THAT(text, HasSubstr("brigade_draft_stale_chunks_total 2"));
  EXPECT_THAT(text, HasSubstr("brigade_draft_quarantined_total 1"));
  EXPECT_THAT(text, HasSubstr("brigade_draft_nacks_total 4"));
}

TEST(MetricsTest, ServedOnAPortOfItsOwn) {
  runtime::ServingState state;
  runtime::Metrics metrics(&state);
  const auto port = metrics.listen("127.0.0.1:0", /*insecure=*/false);
  ASSERT_TRUE(port.ok()) << port.status();
  const std::string page = http_get(*port);
  EXPECT_THAT(page, HasSubstr("200 OK"));
  EXPECT_THAT(page, HasSubstr("brigade_live 1"));
  EXPECT_THAT(page, HasSubstr("brigade_ready 0"));
}

// The HTTP server by itself takes two seconds to hear that it is to stop: sixteen in all.
TEST(MetricsTest, ClosesAtOnce) {
  runtime::ServingState state;
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 8; ++i) {
    const bool everywhere = i == 7;
    runtime::Metrics metrics(&state);
    const auto port = metrics.listen(everywhere ? "0.0.0.0:0" : "127.0.0.1:0", everywhere);
    ASSERT_TRUE(port.ok()) << port.status();
    EXPECT_THAT(http_get(*port), HasSubstr("200 OK"));
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(8));
}

TEST(MetricsTest, OnlyLoopback) {
  runtime::ServingState state;
  runtime::Metrics metrics(&state);
  const auto open = metrics.listen("0.0.0.0:0", /*insecure=*/false);
  EXPECT_EQ(open.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(open.status().message()), HasSubstr("--metrics-listen"));
}

}  // namespace
}  // namespace brigade::tests
