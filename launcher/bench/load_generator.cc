#include "launcher/bench/load_generator.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "launcher/wait_line.h"
#include "nlohmann/json.hpp"

namespace brigade::launcher {
namespace {

constexpr absl::Duration kMaxSleep = absl::Milliseconds(50);

class Replay {
 public:
  Replay(Client& client, std::vector<Arrival> arrivals, const LoadOptions& options,
         const std::atomic<bool>& interrupted)
      : client_(client),
        arrivals_(std::move(arrivals)),
        options_(options),
        interrupted_(interrupted),
        line_(true),
        began_(absl::Now()) {}

  LoadReport run() {
    std::vector<std::thread> threads;
    const size_t count = std::min(arrivals_.size(), static_cast<size_t>(options_.concurrency));
    for (size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    line_.clear();
    report_.seconds = absl::ToDoubleSeconds(absl::Now() - began_);
    for (auto* times : {&report_.first_token, &report_.between_tokens, &report_.total}) {
      std::sort(times->begin(), times->end());
    }
    return std::move(report_);
  }

 private:
  // When request `index` is due.
  absl::Time due(size_t index) const {
    if (options_.rate <= 0) return began_;
    const absl::Duration at = arrivals_[index].at;
    if (arrivals_.back().at > absl::ZeroDuration()) return began_ + at / options_.rate;
    return began_ + absl::Seconds(static_cast<double>(index) / options_.rate);
  }

  void work() {
    while (!interrupted_) {
      const size_t index = next_++;
      if (index >= arrivals_.size()) return;
      while (absl::Now() < due(index) && !interrupted_) {
        absl::SleepFor(std::min(kMaxSleep, due(index) - absl::Now()));
      }
      if (!interrupted_) send(arrivals_[index].request);
    }
  }

  void send(const v1::GenerateRequest& request) {
    const absl::Time begin = absl::Now();
    absl::Time last = begin;
    LoadReport one;
    const absl::Status status = client_.generate(
        request, begin + absl::Seconds(options_.timeout_seconds),
        [&](const v1::GenerateResponse& message) {
          if (message.has_token()) {
            const absl::Time now = absl::Now();
            (one.tokens == 0 ? one.first_token : one.between_tokens)
                .push_back(absl::ToDoubleSeconds(now - last));
            last = now;
            ++one.tokens;
          }
          if (message.has_finished()) {
            one.prompt_tokens = message.finished().usage().prompt_tokens();
            one.cached_prompt_tokens = message.finished().usage().cached_prompt_tokens();
          }
          return true;
        },
        &interrupted_);
    add(one, status, absl::ToDoubleSeconds(absl::Now() - begin));
  }

  void add(const LoadReport& one, const absl::Status& status, double total) {
    std::lock_guard lock(mutex_);
    ++report_.requests;
    if (!status.ok() && report_.failed++ == 0) report_.first_error = status.ToString();
    if (status.ok()) report_.total.push_back(total);
    report_.tokens += one.tokens;
    report_.prompt_tokens += one.prompt_tokens;
    report_.cached_prompt_tokens += one.cached_prompt_tokens;
    report_.first_token.insert(report_.first_token.end(), one.first_token.begin(),
                               one.first_token.end());
    report_.between_tokens.insert(report_.between_tokens.end(), one.between_tokens.begin(),
                                  one.between_tokens.end());
    line_.show(absl::StrCat(report_.requests, " of ", arrivals_.size(), " requests"),
               static_cast<double>(report_.requests) / static_cast<double>(arrivals_.size()));
  }

  Client& client_;
  const std::vector<Arrival> arrivals_;
  const LoadOptions& options_;
  const std::atomic<bool>& interrupted_;
  WaitLine line_;
  const absl::Time began_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  LoadReport report_;
};

// Nearest rank; 0 for nothing.
double percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const size_t rank = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return sorted[std::min(rank, sorted.size() - 1)];
}

double tokens_per_second(const LoadReport& report) {
  return report.seconds > 0 ? static_cast<double>(report.tokens) / report.seconds : 0;
}

}  // namespace

LoadReport replay(Client& client, std::vector<Arrival> arrivals, const LoadOptions& options,
                  const std::atomic<bool>& interrupted) {
  return Replay(client, std::move(arrivals), options, interrupted).run();
}

std::string report_table(const LoadReport& report) {
  std::string out;
  absl::StrAppendFormat(&out, "%-22s %d, %d failed, in %.2f s\n", "requests", report.requests,
                        report.failed, report.seconds);
  absl::StrAppendFormat(&out, "%-22s %d (%d from cache)\n", "prompt tokens", report.prompt_tokens,
                        report.cached_prompt_tokens);
  absl::StrAppendFormat(&out, "%-22s %d\n", "tokens", report.tokens);
  absl::StrAppendFormat(&out, "%-22s %.1f\n", "tokens/s", tokens_per_second(report));
  absl::StrAppendFormat(&out, "%-22s %10s %10s\n", "milliseconds", "p50", "p99");
  const auto line = [&out](const char* name, const std::vector<double>& times) {
    absl::StrAppendFormat(&out, "%-22s %10.2f %10.2f\n", name, percentile(times, 0.5) * 1e3,
                          percentile(times, 0.99) * 1e3);
  };
  line("time to first token", report.first_token);
  line("between tokens", report.between_tokens);
  line("whole request", report.total);
  return out;
}

std::string report_json(const LoadReport& report) {
  const auto times = [](const std::vector<double>& sorted) {
    return nlohmann::ordered_json{{"p50", percentile(sorted, 0.5)},
                                  {"p99", percentile(sorted, 0.99)},
                                  {"samples", sorted.size()}};
  };
  const nlohmann::ordered_json json = {{"requests", report.requests},
                                       {"failed", report.failed},
                                       {"seconds", report.seconds},
                                       {"prompt_tokens", report.prompt_tokens},
                                       {"cached_prompt_tokens", report.cached_prompt_tokens},
                                       {"tokens", report.tokens},
                                       {"tokens_per_second", tokens_per_second(report)},
                                       {"time_to_first_token_s", times(report.first_token)},
                                       {"between_tokens_s", times(report.between_tokens)},
                                       {"request_s", times(report.total)}};
  return json.dump() + "\n";
}

}  // namespace brigade::launcher
