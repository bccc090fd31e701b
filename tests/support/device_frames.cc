#include "tests/support/device_frames.h"

#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "kernels/core/check.h"

namespace brigade::tests {

using namespace expert_parallel;

namespace {

// Behind every message: how many of its bytes are head.
using HeadBytes = uint64_t;

absl::Time soon() { return absl::Now() + absl::Seconds(30); }

}  // namespace

DeviceFrames::DeviceFrames(std::unique_ptr<Transport> inner, kernels::Device& device)
    : TransportWrapper(std::move(inner)), device_(device), stream_(*device.create_stream()) {}

DeviceFrames::~DeviceFrames() {
  for (Held& held : reading_) EXPECT_TRUE(held.read.wait_until(soon()).ok());
  inner_.reset();
}

TransportCaps DeviceFrames::caps() const {
  TransportCaps caps = inner_->caps();
  caps.device_memory = true;
  return caps;
}

absl::Status DeviceFrames::send(PeerId peer, const Message& message, uint64_t cookie) {
  CHECK(message.body.empty());
  if (message.written_by != nullptr) CHECK(message.written_by->record()->wait_until(soon()).ok());
  std::string text(message.device_body.size(), 0);
  if (!text.empty()) {
    CHECK(stream_->copy_to_host(text.data(), message.device_body.data(), text.size()).ok());
    CHECK(stream_->synchronize(soon()).ok());
  }
  const HeadBytes head = message.head.size();
  text.append(reinterpret_cast<const char*>(&head), sizeof(head));
  std::string& kept = sending_[{peer, cookie}] = std::move(text);
  const absl::Status status = inner_->send(
      peer, {.head = message.head, .body = std::as_bytes(std::span(kept.data(), kept.size()))},
      cookie);
  if (!status.ok()) sending_.erase({peer, cookie});
  return status;
}

void DeviceFrames::on_sent(PeerId peer, uint64_t cookie, const absl::Status& status) {
  sending_.erase({peer, cookie});
  listener_->on_sent(peer, cookie, status);
}

void DeviceFrames::on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) {
  HeadBytes head = 0;
  CHECK(bytes.size() >= sizeof(head));
  const size_t body = bytes.size() - sizeof(head);
  std::memcpy(&head, bytes.data() + body, sizeof(head));
  CHECK(head <= body);
  if (head == body) return listener_->on_message(peer, receipt, bytes.first(head));
  Held& held = held_[receipt];
  held.body = *kernels::Buffer::allocate(device_, body - head);
  CHECK(stream_->copy_to_device(held.body.data(), bytes.data() + head, body - head).ok());
  CHECK(stream_->synchronize(soon()).ok());
  listener_->on_device_message(peer, receipt, bytes.first(head),
                               {held.body.as<std::byte>(), body - head});
}

// A reader that comes later sees NaN.
void DeviceFrames::overwrite(Held& held) {
  CHECK(stream_->fill_bytes(held.body.data(), 0xff, held.body.bytes()).ok());
  CHECK(stream_->synchronize(soon()).ok());
}

void DeviceFrames::release(uint64_t receipt) {
  if (const auto found = held_.find(receipt); found != held_.end()) {
    overwrite(found->second);
    held_.erase(found);
  }
  inner_->release(receipt);
}

void DeviceFrames::release_after(uint64_t receipt, kernels::Stream& reader) {
  auto node = held_.extract(receipt);
  CHECK(!node.empty());
  node.mapped().read = *reader.record();
  reading_.push_back(std::move(node.mapped()));
  inner_->release(receipt);
}

bool DeviceFrames::progress() {
  std::erase_if(reading_, [this](Held& held) {
    if (!held.read.ready()) return false;
    overwrite(held);
    return true;
  });
  return inner_->progress();
}

}  // namespace brigade::tests
