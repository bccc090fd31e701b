// Shows an answer as it arrives: text, or one JSON object a line; figures at the end. Used by one
// thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "brigade/v1/generation.pb.h"
#include "launcher/wait_line.h"

namespace brigade::launcher {

struct PrintOptions {
  bool json = false, stats = false, echo = false;
};

class AnswerPrinter {
 public:
  AnswerPrinter(PrintOptions options, const v1::GenerateRequest& request);

  // False when the output is closed: nobody reads on.
  bool print(const v1::GenerateResponse& message);
  void retry(const absl::Status& why, absl::Duration delay);
  void end(const absl::Status& status, int resumptions);

 private:
  bool print_json(const v1::GenerateResponse& message);
  bool print_text(const v1::GenerateResponse& message);
  bool put(const std::string& text);  // false when stdout is closed
  void note(const v1::GenerateResponse& message);
  void print_stats(int resumptions) const;

  const PrintOptions options_;
  const bool terminal_;
  WaitLine waiting_;
  const absl::Time began_;
  absl::Time first_token_, last_token_;
  v1::Started started_;
  std::vector<v1::Finished> finished_;
  std::vector<std::string> texts_;  // with several sequences: shown one after the other at the end
  int64_t tokens_ = 0;
  bool ends_in_newline_ = true;
};

}  // namespace brigade::launcher
