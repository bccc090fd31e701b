// What tests of real processes on emulated GPUs share: the flags that choose a device of the
// emulated module, requests that golden folders hold, and answers to many requests at once.
#pragma once

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"
#include "tests/support/process_cluster.h"
#include "tests/support/stream_load.h"

namespace brigade::tests {

// Beside bin/, where brigade_cuda_emulated writes it.
inline std::string emulated_module() { return program_folder() + "/../emulation/brigade_cuda.so"; }

inline std::vector<std::string> gpu_flags(int ordinal, const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {"--device", absl::StrCat("cuda:", ordinal), "--cuda-module",
                                    emulated_module()};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

// Token ids, every second request sampled with a seed; log-probabilities wanted.
inline std::vector<v1::GenerateRequest> id_requests(
    const std::vector<std::vector<int64_t>>& prompts, int max_tokens, bool greedy_only = false) {
  std::vector<v1::GenerateRequest> requests =
      story_requests(static_cast<int>(prompts.size()), max_tokens);
  for (size_t i = 0; i < prompts.size(); ++i) {
    v1::TokenIds* ids = requests[i].mutable_token_ids();
    ids->mutable_ids()->Add(prompts[i].begin(), prompts[i].end());
    if (greedy_only) requests[i].mutable_sampling()->set_temperature(0);
  }
  return requests;
}

// All answers, in the order of the requests, so many at a time.
inline std::vector<StreamedAnswer> answers_of(launcher::Client& client,
                                              const std::vector<v1::GenerateRequest>& requests,
                                              size_t at_once = 1) {
  std::vector<StreamedAnswer> answers(requests.size());
  std::vector<std::thread> threads;
  for (size_t first = 0; first < at_once; ++first) {
    threads.emplace_back([&, first] {
      for (size_t i = first; i < requests.size(); i += at_once) {
        auto answer = stream_once(client, requests[i]);
        EXPECT_TRUE(answer.ok()) << answer.status();
        if (answer.ok()) answers[i] = *std::move(answer);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

// Of a coordinator on the CPU, alone.
inline std::vector<StreamedAnswer> answers_on_cpu(
    const std::string& model, const std::vector<v1::GenerateRequest>& requests) {
  ProcessCluster alone({.model = model, .workers = 0});
  EXPECT_TRUE(alone.start_all()) << alone.why();
  return testing::Test::HasFailure() ? std::vector<StreamedAnswer>(requests.size())
                                     : answers_of(alone.client(), requests);
}

}  // namespace brigade::tests
