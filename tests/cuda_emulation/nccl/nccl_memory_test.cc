// Memory of NCCL links that streams of others have not done with, when the link ends first.
#include <algorithm>
#include <vector>

#include "absl/time/clock.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/nccl/nccl_bed.h"
#include "tests/cuda_emulation/stream_gate.h"
#include "tests/support/transport_node.h"

namespace brigade::tests {
namespace {

using namespace expert_parallel;

// The near end, seen without a copy in between.
class NcclMemory : public ::testing::Test, public TransportListener {
 protected:
  void SetUp() override {
    transport_ =
        make_nccl_transport(make_loopback_transport(hub_, heads()), *device_, {.makes_ids = true});
    transport_->set_listener(this);
    auto far = make_emulated_device(1);
    auto nccl = make_nccl_transport(make_loopback_transport(hub_, heads()), *far, {});
    node_ = std::make_unique<TransportNode>(
        std::make_unique<StagedBodies>(std::move(far), std::move(nccl)));
    stream_ = *device_->create_stream();
  }
  static TransportOptions heads() {
    TransportOptions options;
    options.max_message_bytes += kNcclTrailerBytes;
    return options;
  }

  void on_message(PeerId, uint64_t, std::span<const std::byte>) override { FAIL(); }
  void on_device_message(PeerId, uint64_t receipt, std::span<const std::byte>,
                         std::span<const std::byte>) override {
    received_.push_back(receipt);
  }
  void on_sent(PeerId, uint64_t, const absl::Status& status) override { sent_.push_back(status); }
  void on_peer_lost(PeerId, const absl::Status&) override {}

  template <typename Done>
  bool drive_both(Done done, absl::Duration at_most = absl::Seconds(20)) {
    const absl::Time deadline = absl::Now() + at_most;
    while (!done() && absl::Now() < deadline) {
      (void)transport_->progress();
      (void)node_->transport().progress();
      absl::SleepFor(absl::Microseconds(200));
    }
    return done();
  }
  // Whether a new link takes the memory of an old one.
  bool new_link_takes_old_memory() {
    const size_t before = device_->bytes_in_use();
    const absl::StatusOr<PeerId> link = transport_->open_link();
    EXPECT_TRUE(link.ok()) << link.status();
    const bool taken = device_->bytes_in_use() == before;
    transport_->close_peer(*link);
    return taken;
  }

  const std::shared_ptr<LoopbackHub> hub_ = make_loopback_hub();
  const std::unique_ptr<kernels::Device> device_ = make_emulated_device(0);
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<uint64_t> received_;
  std::vector<absl::Status> sent_;
  std::unique_ptr<TransportNode> node_;
  std::unique_ptr<Transport> transport_;
};

TEST_F(NcclMemory, ABufferThatIsStillReadGoesToNoNewLink) {
  const PeerId here = *transport_->open_link(), there = *node_->transport().open_link();
  ASSERT_TRUE(transport_->connect(here, *node_->transport().address(there)).ok());
  ASSERT_TRUE(node_->transport().connect(there, *transport_->address(here)).ok());
  ASSERT_TRUE(node_->send(there, std::string(3000, 'x'), 0).ok());
  ASSERT_TRUE(drive_both([&] { return received_.size() == 1; }));
  cuda_emulation::StreamGate gate;
  gate.close(*stream_);
  transport_->release_after(received_[0], *stream_);  // the reader has not come to it
  transport_->close_peer(here);
  drive_both([] { return false; }, absl::Milliseconds(100));
  EXPECT_FALSE(new_link_takes_old_memory());
  gate.open();
  EXPECT_TRUE(drive_both([&] { return new_link_takes_old_memory(); }));
}

TEST_F(NcclMemory, ABodyThatIsStillWrittenIsNotGivenBack) {
  kernels::Buffer body = *kernels::Buffer::allocate(*device_, 4096);
  const PeerId here = *transport_->open_link(), there = *node_->transport().open_link();
  ASSERT_TRUE(transport_->connect(here, *node_->transport().address(there)).ok());
  cuda_emulation::StreamGate gate;
  gate.close(*stream_);
  const std::byte head[64] = {};
  ASSERT_TRUE(transport_
                  ->send(here,
                         {.head = head,
                          .device_body = {body.as<std::byte>(), 4096},
                          .written_by = stream_.get()},
                         0)
                  .ok());
  transport_->close_peer(here);
  drive_both([&] { return !sent_.empty(); }, absl::Milliseconds(100));
  EXPECT_TRUE(sent_.empty()) << "its next user would write at the same time";
  gate.open();
  ASSERT_TRUE(drive_both([&] { return sent_.size() == 1; }));
  EXPECT_TRUE(absl::IsCancelled(sent_[0])) << sent_[0];
}

}  // namespace
}  // namespace brigade::tests
