// Buffers of the coordinator's links, where rows of frames lie in device memory.
#include "expert_parallel/exchange/worker_links.h"

#include "absl/time/clock.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
#include "tests/support/device_frames.h"
#include "tests/support/transport_node.h"

namespace brigade::tests {
namespace {

using namespace expert_parallel;

// The kernel that fills it may not have run; another stream's would write at the same time.
TEST(WorkerLinks, ABufferWhoseFrameCouldNotGoStaysWithItsWriter) {
  const auto soon = [] { return absl::Now() + absl::Seconds(10); };
  auto hub = make_loopback_hub();
  const auto device = *kernels::Device::create(kernels::DeviceKind::kCpuAsync, 1);
  const auto writer = *device->create_stream(), other = *device->create_stream();
  WorkerLinks links(std::make_unique<DeviceFrames>(make_loopback_transport(hub), *device),
                    {.num_ranks = 1, .frames_per_rank = 2, .device = device.get()}, nullptr);
  ASSERT_TRUE(links.plan_device_memory().ok());
  links.start();
  TransportNode far(make_loopback_transport(hub));
  const auto link = [&](uint64_t incarnation) {
    EXPECT_TRUE(links.open(0, incarnation, soon()).ok());
    const PeerId there = *far.transport().open_link();
    EXPECT_TRUE(links.connect(0, *far.transport().address(there), soon()).ok());
  };
  link(1);
  std::byte* const frame = links.acquire(0, writer.get());
  ASSERT_NE(frame, nullptr);
  ASSERT_TRUE(links.close(0, soon()).ok());
  links.submit(0, frame, kFrameHeaderBytes, 1, {.bytes = 64, .written_by = writer.get()});
  links.attach(0, nullptr);  // sends what was submitted
  link(2);
  std::byte* const second = links.acquire(0, other.get());
  ASSERT_NE(second, nullptr);
  EXPECT_NE(second, frame);
  EXPECT_EQ(links.acquire(0, other.get()), nullptr);
  links.has_written(other.get());
  EXPECT_EQ(links.acquire(0, other.get()), nullptr);
  links.has_written(writer.get());
  EXPECT_EQ(links.acquire(0, other.get()), frame);
}

}  // namespace
}  // namespace brigade::tests
