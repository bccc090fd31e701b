// Answers of clusters of processes, one request after the other.
#pragma once

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/process_cluster.h"
#include "tests/support/stream_load.h"

namespace brigade::tests {

inline std::vector<StreamedAnswer> answers_of(ProcessCluster& cluster,
                                              const std::vector<v1::GenerateRequest>& requests) {
  std::vector<StreamedAnswer> answers;
  for (const auto& request : requests) {
    const auto answer = stream_once(cluster.client(), request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    answers.push_back(answer.value_or(StreamedAnswer()));
  }
  return answers;
}

// Of a coordinator that holds all experts itself.
inline std::vector<StreamedAnswer> answers_of_one_process(
    const std::vector<v1::GenerateRequest>& requests, const std::vector<std::string>& flags = {}) {
  ProcessCluster alone({.workers = 0, .coordinator_flags = flags});
  EXPECT_TRUE(alone.start_all()) << alone.why();
  return answers_of(alone, requests);
}

}  // namespace brigade::tests
