#include "runtime/stream/token_stream.h"

#include <chrono>

#include "absl/time/clock.h"
#include "kernels/core/check.h"

namespace brigade::runtime {

TokenStream::TokenStream(size_t capacity, std::function<void()> on_room)
    : capacity_(capacity), ring_(capacity + kMaxSequences), on_room_(std::move(on_room)) {}

bool TokenStream::has_room() const {
  std::lock_guard lock(mutex_);
  return count_ < capacity_;
}

size_t TokenStream::room(size_t wanted) {
  std::lock_guard lock(mutex_);
  const size_t room = count_ < capacity_ ? capacity_ - count_ : 0;
  producer_waits_ = room < wanted;
  return room;
}

void TokenStream::push(TokenEvent event) {
  bool tell = false;
  {
    std::lock_guard lock(mutex_);
    CHECK(!closed_);
    if (cancelled_) return;
    CHECK(count_ < capacity_ || event.finish != FinishReason::kNone);
    CHECK(count_ < ring_.size());
    ring_[(first_ + count_) % ring_.size()] = std::move(event);
    ++count_;
    tell = on_readable_set_;
  }
  readable_.notify_one();
  if (tell) on_readable_();
}

void TokenStream::close() {
  bool tell = false;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    tell = on_readable_set_;
  }
  readable_.notify_all();
  if (tell) on_readable_();
}

bool TokenStream::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

bool TokenStream::take_first(TokenEvent* event, bool* gave_room) {
  if (count_ == 0) return false;
  *event = std::move(ring_[first_]);
  first_ = (first_ + 1) % ring_.size();
  *gave_room = count_ == capacity_ || (producer_waits_ && count_ < capacity_);
  if (*gave_room) producer_waits_ = false;
  --count_;
  return true;
}

absl::StatusOr<std::optional<TokenEvent>> TokenStream::next(absl::Time deadline) {
  TokenEvent event;
  bool gave_room = false;
  {
    std::unique_lock lock(mutex_);
    const auto something = [this] { return count_ > 0 || closed_; };
    if (deadline == absl::InfiniteFuture()) {
      readable_.wait(lock, something);
    } else if (!readable_.wait_until(lock, absl::ToChronoTime(deadline), something)) {
      return absl::DeadlineExceededError("no token arrived in time");
    }
    if (!take_first(&event, &gave_room)) return std::optional<TokenEvent>();
  }
  if (gave_room && on_room_) on_room_();
  return std::optional<TokenEvent>(std::move(event));
}

bool TokenStream::try_next(TokenEvent* event, bool* ended) {
  bool gave_room = false;
  {
    std::lock_guard lock(mutex_);
    *ended = count_ == 0 && closed_;
    if (!take_first(event, &gave_room)) return false;
  }
  if (gave_room && on_room_) on_room_();
  return true;
}

void TokenStream::set_on_readable(std::function<void()> on_readable) {
  std::lock_guard lock(mutex_);
  CHECK(!on_readable_set_);
  on_readable_ = std::move(on_readable);
  on_readable_set_ = on_readable_ != nullptr;
}

void TokenStream::cancel() {
  {
    std::lock_guard lock(mutex_);
    if (cancelled_) return;
    cancelled_ = true;
    count_ = 0;
  }
  if (on_room_) on_room_();
}

}  // namespace brigade::runtime
