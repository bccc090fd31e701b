// What every worker's session with its coordinator does alike: which ends of a stream are refusals,
// when to dial again, which sentences are worth a line. No I/O, no clock.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace brigade::runtime {

inline constexpr int kExitOk = 0, kExitLost = 1, kExitRefused = 2;

// The status's sentence, or the name of its code.
std::string text_of(const absl::Status& status);

// Another try cannot help: settings, model, version, token, or no coordinator's port at all.
bool is_refusal(absl::StatusCode code);

// Doubles with each failure since the last success (from 0), with jitter in [1/2, 1) of `random`:
// workers that lost the same coordinator do not return at once.
absl::Duration redial_delay(int failures, absl::Duration first, absl::Duration longest,
                            uint64_t random);

// One sentence after the other; the same one again only when it is old.
class RepeatedNote {
 public:
  bool worth_saying(const std::string& text, absl::Time now);
  void forget() { text_.clear(); }

 private:
  std::string text_;
  absl::Time said_at_ = absl::InfinitePast();
};

}  // namespace brigade::runtime
