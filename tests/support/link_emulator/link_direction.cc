#include "tests/support/link_emulator/link_direction.h"

#include <algorithm>

namespace brigade::tests {

void LinkDirection::put(std::string packet, absl::Time now) {
  ++counts_.seen;
  if (faults_.cut) {
    ++counts_.cut;
    return;
  }
  if (chance() < faults_.loss) {
    ++counts_.lost;
    return;
  }
  if (inside_.size() >= kMaxPackets) {
    ++counts_.overflowed;
    return;
  }
  absl::Time due = std::max(last_due_, now + faults_.delay + chance() * faults_.jitter);
  last_due_ = due;
  if (chance() < faults_.reorder) {
    ++counts_.held_back;
    due += faults_.hold_back;
  }
  inside_.emplace(due, Held{++next_number_, std::move(packet)});
}

absl::Time LinkDirection::next_due() const {
  return inside_.empty() ? absl::InfiniteFuture() : inside_.begin()->first;
}

bool LinkDirection::take(absl::Time now, std::string* packet) {
  if (next_due() > now) return false;
  Held& held = inside_.begin()->second;
  counts_.overtaken += held.number < highest_taken_;
  highest_taken_ = std::max(highest_taken_, held.number);
  *packet = std::move(held.packet);
  inside_.erase(inside_.begin());
  ++counts_.passed;
  return true;
}

}  // namespace brigade::tests
