#include "tests/cuda_emulation/nccl/nccl_bed.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "kernels/core/check.h"

extern "C" const brigade::kernels::CudaModule* brigade_cuda_module();
extern "C" const brigade::expert_parallel::NcclModule* brigade_nccl_module();

namespace brigade::tests {

using namespace expert_parallel;

namespace {

template <typename T>
T value_of(absl::StatusOr<T> result) {
  EXPECT_TRUE(result.ok()) << result.status();
  CHECK(result.ok());
  return *std::move(result);
}

absl::Time soon() { return absl::Now() + absl::Seconds(30); }

}  // namespace

std::unique_ptr<kernels::Device> make_emulated_device(int ordinal) {
  static const int eight = setenv("BRIGADE_EMULATION_DEVICES", "8", /*overwrite=*/1);
  CHECK(eight == 0);
  return value_of(brigade_cuda_module()->create_device(
      {.kind = kernels::DeviceKind::kCuda, .ordinal = ordinal}));
}

std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> host,
                                               kernels::Device& device,
                                               const NcclOptions& options) {
  return value_of(brigade_nccl_module()->create(
      std::move(host), static_cast<kernels::CudaDevice&>(device), options));
}

StagedBodies::StagedBodies(std::unique_ptr<kernels::Device> device,
                           std::unique_ptr<Transport> inner)
    : TransportWrapper(std::move(inner)),
      device_(std::move(device)),
      stream_(value_of(device_->create_stream())) {}

// The transport's last completions still come here.
StagedBodies::~StagedBodies() { inner_.reset(); }

absl::Status StagedBodies::send(PeerId peer, const Message& message, uint64_t cookie) {
  if (message.body.empty()) return inner_->send(peer, message, cookie);
  if (message.bytes() > kMaxFrameBytes) return absl::InvalidArgumentError("too large");
  if (spare_.empty())
    spare_.push_back(value_of(kernels::Buffer::allocate(*device_, kMaxFrameBytes)));
  kernels::Buffer& buffer = sending_[{peer, cookie}] = std::move(spare_.back());
  spare_.pop_back();
  CHECK(stream_->copy_to_device(buffer.data(), message.body.data(), message.body.size()).ok());
  const absl::Status status =
      inner_->send(peer,
                   {.head = message.head,
                    .device_body = {buffer.as<std::byte>(), message.body.size()},
                    .written_by = stream_.get()},
                   cookie);
  if (!status.ok()) recycle(peer, cookie);
  return status;
}

void StagedBodies::recycle(PeerId peer, uint64_t cookie) {
  auto node = sending_.extract({peer, cookie});
  if (node.empty()) return;
  // A copy into it may still be under way; the next one is behind it on the same stream.
  spare_.push_back(std::move(node.mapped()));
}

void StagedBodies::on_sent(PeerId peer, uint64_t cookie, const absl::Status& status) {
  // The memory of a send that did not go may still be read by the copy.
  if (!status.ok()) CHECK(stream_->synchronize(soon()).ok());
  recycle(peer, cookie);
  listener_->on_sent(peer, cookie, status);
}

void StagedBodies::on_device_message(PeerId peer, uint64_t receipt, std::span<const std::byte> head,
                                     std::span<const std::byte> device_body) {
  const size_t bytes = head.size() + device_body.size();
  auto& copy = received_[receipt];
  copy.reset(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
  if (!head.empty()) std::memcpy(copy.get(), head.data(), head.size());
  CHECK(
      stream_->copy_to_host(copy.get() + head.size(), device_body.data(), device_body.size()).ok());
  CHECK(stream_->synchronize(soon()).ok());
  listener_->on_message(peer, receipt, {copy.get(), bytes});
}

void StagedBodies::release(uint64_t receipt) {
  if (received_.erase(receipt) > 0) {
    inner_->release_after(receipt, *stream_);
  } else {
    inner_->release(receipt);
  }
}

}  // namespace brigade::tests
