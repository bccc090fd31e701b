// Sends a workload to a server and measures what its clients see. One thread a request in flight.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/bench/workload.h"
#include "launcher/client.h"

namespace brigade::launcher {

struct LoadOptions {
  int concurrency = 8;  // requests in flight at most
  double rate = 0;      // speed of a trace, requests/s of prompts; 0: no pacing
  double timeout_seconds = 300;
};

struct LoadReport {
  int requests = 0, failed = 0;
  std::string first_error;
  int64_t prompt_tokens = 0, cached_prompt_tokens = 0, tokens = 0;
  double seconds = 0;
  // Seconds, sorted.
  std::vector<double> first_token, between_tokens, total;
};

LoadReport replay(Client& client, std::vector<Arrival> arrivals, const LoadOptions& options,
                  const std::atomic<bool>& interrupted);

std::string report_table(const LoadReport& report);
std::string report_json(const LoadReport& report);

}  // namespace brigade::launcher
