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
  const absl::Time now = absl::Now();
  const bool fresh = stage != stage_;
  if (fresh) pace_ = LoadPace(now, done);
  stage_ = stage;
  if (!terminal_) return log(fresh, done, total, now);
  if (!fresh && now - drawn_ < kDrawInterval && (total == 0 || done != total)) return;
  drawn_ = now;
  draw(done, total, now);
}

void LoadingDisplay::log(bool fresh, int64_t done, int64_t total, absl::Time now) {
  if (fresh) {
    spdlog::info("loading: {}", stage_);
  } else if (total > 0 && done == total) {
    spdlog::info("loading: {}: {}", stage_, pace_.summary(done, now));
  } else if (total > 0 && pace_.line_due(now)) {
    spdlog::info("loading: {}: {}", stage_, pace_.words(done, total, now));
  }
}

void LoadingDisplay::draw(int64_t done, int64_t total, absl::Time now) {
  std::string line = stage_;
  if (total > 0) {
    const int filled = static_cast<int>(kBarWidth * done / total);
    line += " [" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "] " +
            pace_.words(done, total, now);
  }
  std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  std::fflush(stderr);
  line_open_ = true;
}

}  // namespace brigade::runtime
