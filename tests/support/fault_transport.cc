#include "tests/support/fault_transport.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/time/clock.h"
#include "kernels/core/check.h"

namespace brigade::tests {

using expert_parallel::PeerId;

FaultTransport::FaultTransport(std::unique_ptr<expert_parallel::Transport> inner, uint64_t seed,
                               const FaultRates& rates)
    : TransportWrapper(std::move(inner)),
      random_(seed),
      rates_(rates),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      timer_(timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK | TFD_CLOEXEC)) {
  for (const int fd : {inner_->event_fd(), timer_}) {
    epoll_event event{};
    event.events = EPOLLIN;
    CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0);
  }
}

FaultTransport::~FaultTransport() {
  inner_.reset();
  close(timer_);
  close(epoll_);
}

void FaultTransport::kill_peer(PeerId peer) {
  inner_->close_peer(peer);
  killed_.push_back(peer);
}

void FaultTransport::close_peer(PeerId peer) {
  std::erase(killed_, peer);
  // What was held back for a closed link never arrives.
  for (auto held = waiting_.begin(); held != waiting_.end();) {
    if (held->peer != peer) {
      ++held;
      continue;
    }
    if (held->has_receipt) inner_->release(held->receipt);
    held = waiting_.erase(held);
  }
  inner_->close_peer(peer);
}

void FaultTransport::release(uint64_t receipt) {
  const auto found = handed_over_.find(receipt);
  CHECK(found != handed_over_.end());
  if (found->second.has_receipt) inner_->release(found->second.receipt);
  handed_over_.erase(found);
}

bool FaultTransport::progress() {
  bool moved = inner_->progress();
  const absl::Time now = absl::Now();
  for (auto held = waiting_.begin(); held != waiting_.end();) {
    if (held->due > now) {
      ++held;
      continue;
    }
    Held due = std::move(*held);
    held = waiting_.erase(held);
    hand_over(std::move(due));
    moved = true;
  }
  std::vector<PeerId> killed;
  killed.swap(killed_);
  for (const PeerId peer : killed) {
    close_peer(peer);
    listener_->on_peer_lost(peer, absl::UnavailableError("killed by the test"));
    moved = true;
  }
  return moved;
}

absl::StatusOr<bool> FaultTransport::arm() {
  if (!killed_.empty()) return false;
  itimerspec at{};
  if (!waiting_.empty()) {
    const auto first = std::min_element(waiting_.begin(), waiting_.end(),
                                        [](const Held& a, const Held& b) { return a.due < b.due; });
    at.it_value = absl::ToTimespec(first->due);
  }
  timerfd_settime(timer_, TFD_TIMER_ABSTIME, &at, nullptr);
  return inner_->arm();
}

void FaultTransport::on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) {
  const Fault fault = decide ? decide(peer, bytes) : by_rates();
  Held held;
  held.peer = peer;
  held.has_receipt = true;
  held.receipt = receipt;
  held.bytes = bytes;
  held.due = absl::Now() + fault.delay;
  if (fault.drop) {
    ++counts_.dropped;
    inner_->release(receipt);
    return;
  }
  if (fault.twice) {
    ++counts_.doubled;
    Held second;
    second.peer = peer;
    second.bytes = bytes;
    second.due = held.due;
    copy_into(second);
    waiting_.push_back(std::move(second));
  }
  if (fault.damage && !bytes.empty()) {
    ++counts_.damaged;
    copy_into(held);
    held.copy.get()[random_() % bytes.size()] ^= std::byte(1 << random_() % 8);
  }
  if (fault.delay > absl::ZeroDuration()) {
    ++counts_.delayed;
    waiting_.push_back(std::move(held));
  } else {
    hand_over(std::move(held));
  }
}

Fault FaultTransport::by_rates() {
  std::uniform_real_distribution<double> chance(0, 1);
  Fault fault;
  fault.drop = chance(random_) < rates_.drop;
  fault.twice = chance(random_) < rates_.twice;
  fault.damage = chance(random_) < rates_.damage;
  if (chance(random_) < rates_.delay) fault.delay = rates_.longest_delay * chance(random_);
  return fault;
}

void FaultTransport::hand_over(Held held) {
  const uint64_t receipt = next_receipt_++;
  const PeerId peer = held.peer;
  const std::span<const std::byte> bytes = held.bytes;
  handed_over_.emplace(receipt, std::move(held));
  listener_->on_message(peer, receipt, bytes);
}

void FaultTransport::copy_into(Held& held) {
  const size_t size = held.bytes.size();
  held.copy.reset(static_cast<std::byte*>(std::aligned_alloc(64, (size + 64) / 64 * 64)));
  if (size > 0) std::memcpy(held.copy.get(), held.bytes.data(), size);
  held.bytes = {held.copy.get(), size};
}

}  // namespace brigade::tests
