#include "tests/support/stream_load.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"

namespace brigade::tests {
namespace {

constexpr absl::Duration kAnswerLimit = absl::Minutes(2);
constexpr int kMostStreams = 64;

}  // namespace

std::vector<v1::GenerateRequest> story_requests(int count, int max_tokens) {
  const char* const prompts[] = {"Once upon a time", "The little dog", "Tom and Sue went to the park",
                                 "One day, a girl named Lily found"};
  std::vector<v1::GenerateRequest> requests(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    v1::GenerateRequest& request = requests[static_cast<size_t>(i)];
    request.set_text(prompts[i % 4]);
    request.set_max_tokens(max_tokens);
    request.mutable_stop()->set_ignore_eos(true);
    request.mutable_sampling()->set_logprobs(1);
    if (i % 2 == 0) {
      request.mutable_sampling()->set_temperature(0);
    } else {
      request.mutable_sampling()->set_temperature(0.9);
      request.mutable_sampling()->set_seed(static_cast<uint64_t>(100 + i));
    }
  }
  return requests;
}

absl::StatusOr<StreamedAnswer> stream_once(launcher::Client& client,
                                           const v1::GenerateRequest& request,
                                           std::atomic<int64_t>* last_token_ns) {
  StreamedAnswer answer;
  bool finished = false;
  const absl::Status status = client.generate(
      request, absl::Now() + kAnswerLimit, [&](const v1::GenerateResponse& message) {
        if (message.has_token()) {
          answer.ids.push_back(message.token().id());
          answer.logprobs.push_back(std::bit_cast<uint64_t>(message.token().logprob().logprob()));
          if (last_token_ns != nullptr) *last_token_ns = absl::GetCurrentTimeNanos();
        }
        finished |= message.has_finished();
        return true;
      });
  if (!status.ok()) return status;
  if (!finished) return absl::DataLossError("the stream ended without a Finished");
  return answer;
}

StreamLoad::StreamLoad(launcher::Client& client, std::vector<v1::GenerateRequest> requests,
                       std::vector<StreamedAnswer> expected)
    : client_(client),
      requests_(std::move(requests)),
      expected_(std::move(expected)),
      last_token_ns_(kMostStreams) {
  CHECK(requests_.size() == expected_.size());
}

StreamLoad::~StreamLoad() { stop(); }

void StreamLoad::start(int streams) {
  CHECK(streams <= kMostStreams);
  for (int i = 0; i < streams; ++i) threads_.emplace_back([this, i] { run(i); });
}

void StreamLoad::stop() {
  stopping_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void StreamLoad::run(int stream) {
  for (size_t i = static_cast<size_t>(stream); !stopping_; ++i) {
    const size_t which = i % requests_.size();
    const auto answer =
        stream_once(client_, requests_[which], &last_token_ns_[static_cast<size_t>(stream)]);
    std::string problem;
    if (!answer.ok()) {
      ++failed_;
      problem = std::string(answer.status().message());
    } else if (*answer != expected_[which]) {
      ++changed_;
      problem = absl::StrCat("request ", which, " answered with other words");
    } else {
      ++completed_;
    }
    if (problem.empty()) continue;
    std::lock_guard lock(mutex_);
    if (first_problem_.empty()) first_problem_ = problem;
  }
}

std::string StreamLoad::first_problem() const {
  std::lock_guard lock(mutex_);
  return first_problem_;
}

std::vector<int64_t> StreamLoad::last_token_ns() const {
  std::vector<int64_t> times;
  for (size_t i = 0; i < threads_.size(); ++i) times.push_back(last_token_ns_[i]);
  return times;
}

}  // namespace brigade::tests
