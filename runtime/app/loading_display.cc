#include "runtime/app/loading_display.h"

#include <unistd.h>

#include <cstdio>

#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

namespace brigade::runtime {
namespace {

constexpr int kBarWidth = 40;
constexpr absl::Duration kDrawInterval = absl::Milliseconds(50);

}  // namespace

LoadingDisplay::LoadingDisplay(ServingState* state)
    : state_(state), terminal_(isatty(STDERR_FILENO) == 1) {}

LoadingDisplay::~LoadingDisplay() {
  if (line_open_) std::fputs("\r\x1b[K", stderr);
}

void LoadingDisplay::update(const std::string& stage, int64_t done, int64_t total) {
  state_->set_progress({stage, done, total});
  if (!terminal_) {
    if (stage != stage_) spdlog::info("loading: {}", stage);
    stage_ = stage;
    return;
  }
  const absl::Time now = absl::Now();
  if (stage == stage_ && now - drawn_ < kDrawInterval && done != total) return;
  stage_ = stage;
  drawn_ = now;
  const int filled = total > 0 ? static_cast<int>(kBarWidth * done / total) : 0;
  std::fprintf(stderr, "\r\x1b[K%s [%s%s] %lld of %lld MB", stage.c_str(),
               std::string(filled, '#').c_str(), std::string(kBarWidth - filled, '.').c_str(),
               static_cast<long long>(done >> 20), static_cast<long long>(total >> 20));
  std::fflush(stderr);
  line_open_ = true;
}

}  // namespace brigade::runtime
