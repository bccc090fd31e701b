#include "runtime/stream/stop_matcher.h"

#include <algorithm>

namespace brigade::runtime {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

// The longest stop string that pending_ ends with.
const std::string* StopMatcher::complete_match() const {
  const std::string* found = nullptr;
  for (const std::string& stop : stops_) {
    if (pending_.ends_with(stop) && (found == nullptr || stop.size() > found->size())) found = &stop;
  }
  return found;
}

// Length of the longest end of pending_ that begins a stop string.
size_t StopMatcher::held_bytes() const {
  const std::string_view pending = pending_;
  for (size_t bytes = std::min(pending.size(), longest_ - 1); bytes > 0; --bytes) {
    const std::string_view tail = pending.substr(pending.size() - bytes);
    for (const std::string& stop : stops_) {
      if (stop.size() > bytes && stop.starts_with(tail)) return bytes;
    }
  }
  return 0;
}

std::string StopMatcher::append(std::string_view piece, bool may_stop) {
  if (stops_.empty()) return std::string(piece);
  for (const char byte : piece) {
    pending_.push_back(byte);
    const std::string* match = may_stop ? complete_match() : nullptr;
    if (match == nullptr) continue;
    matched_ = *match;
    std::string shown = pending_.substr(0, pending_.size() - match->size());
    pending_.clear();
    return shown;
  }
  const size_t shown_bytes = pending_.size() - held_bytes();
  std::string shown = pending_.substr(0, shown_bytes);
  pending_.erase(0, shown_bytes);
  return shown;
}

std::string StopMatcher::flush() {
  std::string rest;
  rest.swap(pending_);
  return rest;
}

}  // namespace brigade::runtime
