#include "runtime/model/load_pace.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace brigade::runtime {
namespace {

constexpr absl::Duration kTooEarly = absl::Milliseconds(500);

}  // namespace

std::string bytes_in_words(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000) return absl::StrFormat("%.1f GB", value / 1e9);
  if (bytes >= 1'000'000) return absl::StrFormat("%.1f MB", value / 1e6);
  return absl::StrFormat("%.1f kB", value / 1e3);
}

double LoadPace::bytes_per_second(int64_t done, absl::Time now) const {
  if (now - start_ < kTooEarly) return 0;
  return static_cast<double>(done - done_at_start_) / absl::ToDoubleSeconds(now - start_);
}

std::string LoadPace::words(int64_t done, int64_t total, absl::Time now) const {
  std::string text = absl::StrCat(bytes_in_words(done), " of ", bytes_in_words(total));
  const double pace = bytes_per_second(done, now);
  if (pace <= 0) return text;
  absl::StrAppend(&text, ", ", bytes_in_words(static_cast<int64_t>(pace)), "/s");
  if (done < total) {
    absl::StrAppendFormat(&text, ", %.0f s left", static_cast<double>(total - done) / pace);
  }
  return text;
}

std::string LoadPace::summary(int64_t done, absl::Time now) const {
  std::string text = absl::StrFormat("%s in %.1f s", bytes_in_words(done - done_at_start_),
                                     absl::ToDoubleSeconds(now - start_));
  const double pace = bytes_per_second(done, now);
  if (pace > 0) {
    absl::StrAppend(&text, " (", bytes_in_words(static_cast<int64_t>(pace)), "/s)");
  }
  return text;
}

bool LoadPace::line_due(absl::Time now) {
  if (now - last_line_ < kBetweenLines) return false;
  last_line_ = now;
  return true;
}

LoadProgressCallback log_load_progress(std::function<void(const std::string& line)> log) {
  return [log = std::move(log), pace = std::make_shared<LoadPace>(absl::Now())](
             const LoadProgress& progress) {
    const absl::Time now = absl::Now();
    if (progress.tensors == progress.tensors_total) {
      log(absl::StrCat("loaded ", pace->summary(progress.bytes, now)));
    } else if (pace->line_due(now)) {
      log(absl::StrCat("loading: ", pace->words(progress.bytes, progress.bytes_total, now)));
    }
  };
}

}  // namespace brigade::runtime
