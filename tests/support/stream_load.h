// Clients that stream all the time and check every word: each thread sends one of a few requests
// again and again and compares tokens and log-probability bits with what one undisturbed process
// answered. Start, disturb the server, stop. Thread-safe counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/client.h"

namespace brigade::tests {

// Token ids and the bits of their log-probabilities.
struct StreamedAnswer {
  std::vector<int64_t> ids;
  std::vector<uint64_t> logprobs;
  bool operator==(const StreamedAnswer&) const = default;
};

// Greedy and seeded requests on story prompts, `max_tokens` each.
std::vector<v1::GenerateRequest> story_requests(int count, int max_tokens);

absl::StatusOr<StreamedAnswer> stream_once(launcher::Client& client,
                                           const v1::GenerateRequest& request,
                                           std::atomic<int64_t>* last_token_ns = nullptr);

class StreamLoad {
 public:
  StreamLoad(launcher::Client& client, std::vector<v1::GenerateRequest> requests,
             std::vector<StreamedAnswer> expected);
  ~StreamLoad();
  void start(int streams);
  void stop();  // waits for the answers under way

  int64_t completed() const { return completed_; }
  int64_t failed() const { return failed_; }
  int64_t changed() const { return changed_; }
  std::string first_problem() const;
  // When each stream saw its last token; for how long a disturbance held it up.
  std::vector<int64_t> last_token_ns() const;

 private:
  void run(int stream);

  launcher::Client& client_;
  const std::vector<v1::GenerateRequest> requests_;
  const std::vector<StreamedAnswer> expected_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> completed_{0}, failed_{0}, changed_{0};
  mutable std::mutex mutex_;
  std::string first_problem_;
  std::vector<std::atomic<int64_t>> last_token_ns_;
  std::vector<std::thread> threads_;
};

}  // namespace brigade::tests
