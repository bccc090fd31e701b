// Uploads through pinned pieces over the stand-in runtime: nothing is staged by the driver, nothing is
// allocated on the way, a piece waits for its copy, and a GPU that fails in the middle leaves nothing
// behind.
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/device_cuda.h"
#include "kernels/core/slot_pool.h"
#include "kernels/core/staged_upload.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/ops/cuda_ops.h"
#include "tests/cuda_emulation/runtime/control.h"
#include "tests/cuda_emulation/stream_gate.h"

namespace brigade::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kPiece = 4096;

absl::Time soon() { return absl::Now() + absl::Seconds(30); }
void expect_ok(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

class StagedUploadCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = cuda::create_device({.kind = DeviceKind::kCuda});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_ = *device_->create_stream();
  }
  void TearDown() override {
    cuda_emulation::set_stream_delay(100, 16);
    cuda_emulation::reset_faults();
  }
  // Ends with a fault of the GPU, on a stream of its own.
  void break_the_gpu(const Buffer& buffer) {
    cuda_emulation::inject_fault(cudaErrorIllegalAddress);
    auto& stream = static_cast<CudaStream&>(*stream_);
    expect_ok(stream.ops().gather_rows(stream, {.x = buffer.as<float>(),
                                                .index = buffer.as<int32_t>(),
                                                .out = buffer.as<float>() + 2,
                                                .rows = 1,
                                                .width = 1}));
    EXPECT_FALSE(stream.synchronize(soon()).ok());
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(StagedUploadCudaTest, PiecesOnTheirWayAreNotWrittenAgain) {
  cuda_emulation::set_stream_delay(500, 1);
  auto upload = *StagedUpload::create(*device_, {.piece_bytes = kPiece});
  const std::vector<size_t> sizes = {1, kPiece - 1, kPiece, 20 * kPiece + 33};
  std::vector<Buffer> buffers;
  for (const size_t bytes : sizes) buffers.push_back(*Buffer::allocate(*device_, bytes));
  const cuda_emulation::Counters before = cuda_emulation::counters();
  for (size_t at = 0; at < sizes.size(); ++at) {
    expect_ok(upload->fill("it", buffers[at].data(), sizes[at],
                           [&](size_t first, size_t bytes, void* to) {
                             std::memset(to, static_cast<int>(1 + at + first / kPiece), bytes);
                           }));
  }
  expect_ok(upload->finish());
  EXPECT_EQ(cuda_emulation::counters().memory_calls, before.memory_calls);
  EXPECT_EQ(cuda_emulation::counters().pageable_copies, before.pageable_copies);
  for (size_t at = 0; at < sizes.size(); ++at) {
    std::vector<uint8_t> got(sizes[at]);
    expect_ok(stream_->copy_to_host(got.data(), buffers[at].data(), got.size()));
    expect_ok(stream_->synchronize(soon()));
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], 1 + at + i / kPiece) << i;
  }
}

TEST_F(StagedUploadCudaTest, AStreamThatStandsStillEndsTheUpload) {
  cuda_emulation::StreamGate gate;
  const Buffer buffer = *Buffer::allocate(*device_, 5 * kPiece);
  auto upload = *StagedUpload::create(
      *device_, {.piece_bytes = kPiece, .pieces = 3, .timeout = absl::Milliseconds(50)});
  gate.close(*upload->stream());
  int writes = 0;
  const absl::Status late =
      upload->fill("lm_head", buffer.data(), buffer.bytes(), [&](size_t, size_t bytes, void* to) {
        std::memset(to, ++writes, bytes);
      });
  EXPECT_TRUE(absl::IsDeadlineExceeded(late));
  EXPECT_THAT(std::string(late.message()), HasSubstr("uploading lm_head"));
  EXPECT_EQ(writes, 3);
  gate.open();
}

TEST_F(StagedUploadCudaTest, AFaultInTheMiddleNamesTheTensorAndFreesAll) {
  {
    SlotPool pool(*device_, 3 * kPiece);
    expect_ok(pool.plan(2));
    const Buffer buffer = *Buffer::allocate(*device_, 64);
    auto upload = *StagedUpload::create(*device_, {.piece_bytes = kPiece});
    const Slot first = *pool.take();
    const auto zeros = [](size_t, size_t bytes, void* to) { std::memset(to, 0, bytes); };
    expect_ok(upload->fill("layer 1", first.data(), 3 * kPiece, zeros));
    const Slot second = *pool.take();
    int writes = 0;
    const absl::Status failed = upload->fill(
        "layer 2", second.data(), 3 * kPiece, [&](size_t, size_t bytes, void* to) {
          if (++writes == 2) break_the_gpu(buffer);
          std::memset(to, 0, bytes);
        });
    EXPECT_THAT(std::string(failed.message()),
                AllOf(HasSubstr("uploading layer 2"), HasSubstr("cudaErrorIllegalAddress")));
    EXPECT_EQ(writes, 2);
    EXPECT_EQ(upload->fill("layer 3", second.data(), kPiece, zeros), failed);
    EXPECT_FALSE(upload->finish().ok());
  }
  EXPECT_EQ(device_->bytes_in_use(), 0u);
}

}  // namespace
}  // namespace brigade::kernels
