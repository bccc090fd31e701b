// What bench replays: requests with the times they arrive at, read from a file of prompts or a
// trace of arrivals. Pure functions of the files.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "brigade/v1/generation.pb.h"

namespace brigade::launcher {

struct WorkloadOptions {
  std::string prompts_file, trace_file;  // one of them
  int max_requests = 0;                  // 0: all
  int max_prompt_tokens = 0;             // 0: what the context allows
};

struct Arrival {
  absl::Duration at;  // since the first; zero for prompts
  v1::GenerateRequest request;
};

// INVALID_ARGUMENT names the file and the line. Requests of a trace have random token ids (the same
// in every run) of the length it says and generate exactly as many tokens, both cut to `model`'s
// context.
absl::StatusOr<std::vector<Arrival>> read_workload(const WorkloadOptions& options,
                                                   const v1::Model& model,
                                                   const v1::GenerateRequest& common);

}  // namespace brigade::launcher
