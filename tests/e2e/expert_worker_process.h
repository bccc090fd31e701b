// Starts the real brigade-expert-worker for a test. One owner.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"
#include "tests/support/scripted_coordinator.h"
#include "tests/support/test_env.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/worker_links_bed.h"

namespace brigade::tests {

class ExpertWorkerProcessTest : public testing::Test {
 protected:
  std::unique_ptr<ChildProcess> start(const std::string& address,
                                      const std::vector<std::string>& more = {}) {
    log_ = folder_.file(absl::StrCat("log_", ++starts_));
    std::vector<std::string> argv = {program_folder() + "/brigade-expert-worker", "--join", address,
                                     "--threads", "1"};
    if (more.empty() || more[0] != "--model") argv.insert(argv.end(), {"--model", demo_model()});
    argv.insert(argv.end(), more.begin(), more.end());
    return std::make_unique<ChildProcess>(argv, log_);
  }
  static std::string demo_model() { return source_dir() + "/models/demo/target"; }
  std::string log() const { return read_file(log_); }

  ModelFolder folder_;
  int starts_ = 0;
  std::string log_;
};

}  // namespace brigade::tests
