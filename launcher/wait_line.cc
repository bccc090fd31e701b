#include "launcher/wait_line.h"

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>

namespace brigade::launcher {
namespace {

constexpr int kBarWidth = 30;
constexpr auto kInterval = std::chrono::milliseconds(100);

std::string bar(double fraction) {
  const int filled = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * kBarWidth);
  std::string text(kBarWidth + 2, '.');
  text.front() = '[';
  text.back() = ']';
  text.replace(1, filled, filled, '#');
  return text;
}

}  // namespace

WaitLine::WaitLine(bool enabled) : enabled_(enabled && isatty(STDERR_FILENO) == 1) {}

void WaitLine::show(const std::string& text, double fraction) {
  if (!enabled_) return;
  std::lock_guard lock(mutex_);
  text_ = text;
  fraction_ = fraction;
  if (!thread_.joinable()) {
    stopping_ = false;
    thread_ = std::thread([this] { draw_until_stopped(); });
  }
}

void WaitLine::clear() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

void WaitLine::draw_until_stopped() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  for (int tick = 0; !stopping_; ++tick) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    const std::string sign = fraction_ >= 0 ? bar(fraction_) : std::string(1, "|/-\\"[tick % 4]);
    std::fprintf(stderr, "\r\x1b[K%s %s (%.1f s)", sign.c_str(), text_.c_str(), waited.count());
    std::fflush(stderr);
    changed_.wait_for(lock, kInterval, [this] { return stopping_; });
  }
}

}  // namespace brigade::launcher
