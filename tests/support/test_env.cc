#include "tests/support/test_env.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace brigade::tests {
namespace {

const char* env(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace

int scaled(int count, int at_least) {
  const char* text = env("BRIGADE_TEST_SCALE");
  const double scale = text != nullptr ? std::atof(text) : 1.0;
  return std::max(at_least, static_cast<int>(std::lround(count * scale)));
}

bool is_long_run() { return env("BRIGADE_TEST_LONG") != nullptr; }

uint64_t test_seed(uint64_t fixed) {
  const char* text = env("BRIGADE_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : fixed;
}

std::optional<std::string> shared_data_dir() {
  const char* text = env("BRIGADE_TEST_DATA");
  if (text == nullptr) return std::nullopt;
  return std::string(text);
}

std::string source_dir() { return BRIGADE_SOURCE_DIR; }

std::string replay_note(const std::string& test, uint64_t seed) {
  const char* scale = env("BRIGADE_TEST_SCALE");
  return "replay: BRIGADE_TEST_SEED=" + std::to_string(seed) +
         (scale != nullptr ? std::string(" BRIGADE_TEST_SCALE=") + scale : std::string()) +
         " ctest --test-dir build/release -R '^" + test + "$' --output-on-failure";
}

}  // namespace brigade::tests
