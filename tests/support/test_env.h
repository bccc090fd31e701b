// Environment of a test run: scale of iteration counts, seed, shared data. A randomized test prints
// the seed and the command that replays it when it fails (SeedNote).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace brigade::tests {

// BRIGADE_TEST_SCALE (default 1): multiplies iteration counts; never below `at_least`.
int scaled(int count, int at_least = 1);

// True in the long form of a test (label "long").
bool is_long_run();

// BRIGADE_TEST_SEED, else `fixed`. The run script sets a fresh one for its second pass.
uint64_t test_seed(uint64_t fixed = 1);

// Folder of the shared test data, from BRIGADE_TEST_DATA; nullopt when it is not set.
std::optional<std::string> shared_data_dir();

// Root of the source tree (committed test data lives under tests/).
std::string source_dir();

// "replay: BRIGADE_TEST_SEED=7 BRIGADE_TEST_SCALE=0.1 ctest -R name": for SCOPED_TRACE.
std::string replay_note(const std::string& test, uint64_t seed);

}  // namespace brigade::tests

// Leaves the test, marked skipped, when the shared data folder is not named.
#define BRIGADE_REQUIRE_SHARED_DATA(variable)                                     \
  const auto variable##_optional = ::brigade::tests::shared_data_dir();           \
  if (!variable##_optional) GTEST_SKIP() << "skipped: BRIGADE_TEST_DATA not set"; \
  const std::string variable = *variable##_optional
