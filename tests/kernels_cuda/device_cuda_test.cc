// The CUDA device layer over the stand-in runtime: copies, points, wakers, pinned memory, graphs,
// and what it says when memory, the driver or a kernel fails.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/device_cuda.h"
#include "kernels/core/host_buffer.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/probe.h"
#include "kernels/ops/cuda_ops.h"
#include "tests/cuda_emulation/runtime/control.h"
#include "tests/cuda_emulation/stream_gate.h"

namespace brigade::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Time soon() { return absl::Now() + absl::Seconds(30); }
std::string text(const absl::Status& status) { return std::string(status.message()); }
void expect_ok(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

DeviceOptions gpu(int ordinal) {
  DeviceOptions options;
  options.kind = DeviceKind::kCuda;
  options.ordinal = ordinal;
  return options;
}

using Gate = cuda_emulation::StreamGate;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = cuda::create_device(gpu(0));
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_ = new_stream();
  }
  void TearDown() override {
    cuda_emulation::reset_faults();
    stream_.reset();
  }
  std::unique_ptr<Stream> new_stream() {
    auto stream = device_->create_stream();
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }
  Buffer allocate(size_t bytes) {
    auto buffer = Buffer::allocate(*device_, bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }
  HostBuffer pinned(size_t bytes) {
    auto buffer = HostBuffer::allocate(*device_, bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }
  Event record(Stream& stream, Waker* waker = nullptr) {
    auto event = stream.record(waker);
    EXPECT_TRUE(event.ok()) << event.status();
    return *std::move(event);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaDeviceTest, CopiesThereAndBack) {
  std::vector<int32_t> values(1000), back(1000);
  std::iota(values.begin(), values.end(), 1);
  const Buffer first = allocate(4000), second = allocate(4000);
  expect_ok(stream_->copy_to_device(first.data(), values.data(), 4000));
  expect_ok(stream_->copy_on_device(second.data(), first.data(), 4000));
  expect_ok(stream_->fill_bytes(second.data(), 7, 4));
  expect_ok(stream_->copy_to_host(back.data(), second.data(), 4000));
  expect_ok(stream_->copy_to_host(nullptr, second.data(), 0));
  expect_ok(stream_->synchronize(soon()));
  values[0] = 0x07070707;
  EXPECT_EQ(back, values);
}

TEST_F(CudaDeviceTest, SaysWhatItIsAndCountsMemory) {
  EXPECT_EQ(device_->kind(), DeviceKind::kCuda);
  EXPECT_THAT(device_->name(), HasSubstr("cuda:0 "));
  EXPECT_TRUE(device_->has_graphs());
  EXPECT_TRUE(device_->keeps_bits());
  DeviceOptions fast = gpu(0);
  fast.cuda_math = CudaMath::kFast;
  EXPECT_FALSE((*cuda::create_device(fast))->keeps_bits());
  const size_t before = device_->free_bytes();
  {
    Buffer large = allocate(size_t(9) << 20);
    const Buffer empty = allocate(0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % 64, 0u);
    EXPECT_EQ(device_->bytes_in_use(), size_t(9) << 20);
    EXPECT_LE(device_->free_bytes(), before - (size_t(9) << 20));
    const Buffer moved = std::move(large);
    EXPECT_EQ(large.data(), nullptr);
  }
  EXPECT_EQ(device_->bytes_in_use(), 0u);
  EXPECT_EQ(device_->free_bytes(), before);
}

TEST_F(CudaDeviceTest, TooMuchMemoryIsAnErrorWithTheSizes) {
  const Buffer held = allocate(4096);
  const absl::Status full = Buffer::allocate(*device_, size_t(1) << 46).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(text(full),
              AllOf(HasSubstr("cannot allocate 70368744177664 bytes"),
                    HasSubstr("this process uses 4096"), HasSubstr("cudaErrorMemoryAllocation")));
  EXPECT_TRUE(Buffer::allocate(*device_, 16).ok());  // the error does not stay
  expect_ok(stream_->synchronize(soon()));
}

TEST_F(CudaDeviceTest, PointsFollowTheWorkAndWake) {
  Gate gate;
  gate.close(*stream_);
  Waker waker;
  const Event event = record(*stream_, &waker);
  const Event copy = event;
  EXPECT_FALSE(event.ready());
  EXPECT_FALSE(waker.take());
  EXPECT_EQ(event.wait_until(absl::Now()).code(), absl::StatusCode::kDeadlineExceeded);
  gate.open();
  EXPECT_TRUE(waker.wait_until(soon()));
  expect_ok(copy.wait_until(soon()));
  EXPECT_TRUE(event.ready());
  for (int i = 0; i < 100; ++i) {  // events are used again
    expect_ok(record(*stream_, &waker).wait_until(soon()));
  }
}

// Who has seen a point pass may destroy the waker at once.
TEST_F(CudaDeviceTest, AReadyPointNeedsItsWakerNoMore) {
  for (int i = 0; i < 200; ++i) {
    auto waker = std::make_unique<Waker>();
    const Event event = record(*stream_, waker.get());
    expect_ok(event.wait_until(soon()));
    waker.reset();
  }
}

TEST_F(CudaDeviceTest, StreamsRunApart) {
  const std::unique_ptr<Stream> other = new_stream();
  Gate gate;
  gate.close(*stream_);
  const Event held = record(*stream_);
  expect_ok(other->synchronize(soon()));
  EXPECT_FALSE(held.ready());
}

TEST_F(CudaDeviceTest, PinnedMemoryDoesNotHoldUpTheCaller) {
  const Buffer buffer = allocate(64);
  HostBuffer sent = pinned(64);
  const HostBuffer received = pinned(64);
  std::memset(sent.data(), 3, 64);
  const uint64_t blocking = cuda_emulation::counters().blocking_copies;
  Gate gate;
  gate.close(*stream_);
  expect_ok(stream_->copy_to_device(buffer.data(), sent.data(), 64));
  expect_ok(stream_->fill_bytes(buffer.data(), 9, 1));
  expect_ok(stream_->copy_to_host(received.data(), buffer.data(), 64));
  const Event event = record(*stream_);
  EXPECT_FALSE(event.ready());
  EXPECT_NE(received.as<uint8_t>()[0], 9);  // nothing has run
  gate.open();
  expect_ok(event.wait_until(soon()));
  EXPECT_EQ(received.as<uint8_t>()[0], 9);
  EXPECT_EQ(received.as<uint8_t>()[63], 3);
  EXPECT_EQ(cuda_emulation::counters().blocking_copies, blocking);
  const HostBuffer moved = std::move(sent);
  EXPECT_EQ(sent.data(), nullptr);
  EXPECT_EQ(moved.bytes(), 64u);
}

// CUDA makes no host call behind a kernel that faulted: the point must pass all the same, and let
// go of its waker.
TEST_F(CudaDeviceTest, TheFirstErrorOfTheGpuStays) {
  const Buffer buffer = allocate(16);
  expect_ok(stream_->fill_bytes(buffer.data(), 0, 16));
  expect_ok(stream_->synchronize(soon()));
  Gate gate;
  gate.close(*stream_);
  cuda_emulation::inject_fault(cudaErrorIllegalAddress);
  auto& stream = static_cast<CudaStream&>(*stream_);
  expect_ok(stream.ops().gather_rows(stream, {.x = buffer.as<float>(),
                                              .index = buffer.as<int32_t>(),
                                              .out = buffer.as<float>() + 2,
                                              .rows = 1,
                                              .width = 1}));
  auto waker = std::make_unique<Waker>();
  const Event event = record(*stream_, waker.get());
  EXPECT_FALSE(event.ready());
  gate.open();
  const absl::Status first = event.wait_until(soon());
  EXPECT_EQ(first.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(text(first), HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_TRUE(event.ready());
  EXPECT_FALSE(waker->take());
  waker.reset();
  EXPECT_EQ(stream_->record().status(), first);
  EXPECT_EQ(stream_->synchronize(soon()), first);
  EXPECT_EQ(stream_->fill_bytes(buffer.data(), 0, 16), first);
}

TEST_F(CudaDeviceTest, GraphsRunWhenLaunched) {
  const Buffer buffer = allocate(4);
  HostBuffer host = pinned(4);
  expect_ok(stream_->fill_bytes(buffer.data(), 1, 4));
  expect_ok(stream_->begin_capture());
  expect_ok(stream_->fill_bytes(buffer.data(), 2, 2));
  EXPECT_EQ(stream_->record().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(stream_->begin_capture().code(), absl::StatusCode::kFailedPrecondition);
  expect_ok(stream_->fill_bytes(buffer.data(), 3, 1));
  absl::StatusOr<Graph> graph = stream_->end_capture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(stream_->end_capture().status().code(), absl::StatusCode::kFailedPrecondition);
  const auto bytes = [&] {
    expect_ok(stream_->copy_to_host(host.data(), buffer.data(), 4));
    expect_ok(stream_->synchronize(soon()));
    return std::vector<int>(host.as<uint8_t>(), host.as<uint8_t>() + 4);
  };
  EXPECT_EQ(bytes(), (std::vector<int>{1, 1, 1, 1}));  // recorded, not run
  for (int launch = 0; launch < 2; ++launch) {
    expect_ok(stream_->fill_bytes(buffer.data(), 1, 4));
    expect_ok(stream_->launch(*graph));
    EXPECT_EQ(bytes(), (std::vector<int>{3, 2, 1, 1}));
  }
  EXPECT_EQ(stream_->launch(Graph()).code(), absl::StatusCode::kInvalidArgument);
}

// As the transport's thread does while the step thread records.
TEST_F(CudaDeviceTest, AnEventOfAnotherThreadStaysOutOfAGraph) {
  const Buffer buffer = allocate(4);
  auto& stream = static_cast<CudaStream&>(*stream_);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  expect_ok(stream_->begin_capture());
  std::atomic<bool> recorded{false};
  std::thread other([&] {
    EXPECT_EQ(stream.record_for(event), cudaSuccess);
    recorded = true;
  });
  const absl::Time until = absl::Now() + absl::Milliseconds(20);  // it must not come
  while (!recorded && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(recorded);
  expect_ok(stream_->fill_bytes(buffer.data(), 2, 4));
  EXPECT_TRUE(stream_->end_capture().ok());
  other.join();
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

// Pageable memory cannot be recorded: the call is refused, the recording is lost, the stream is not.
TEST_F(CudaDeviceTest, ARecordingThatFailsIsNoErrorOfTheStream) {
  const Buffer buffer = allocate(4);
  HostBuffer host = pinned(4);
  std::vector<uint8_t> pageable(4, 7);
  expect_ok(stream_->fill_bytes(buffer.data(), 1, 4));
  expect_ok(stream_->begin_capture());
  EXPECT_EQ(stream_->copy_to_device(buffer.data(), pageable.data(), 4).code(),
            absl::StatusCode::kInternal);
  EXPECT_THAT(text(stream_->end_capture().status()), HasSubstr("cudaStreamEndCapture"));
  expect_ok(stream_->fill_bytes(buffer.data(), 2, 2));
  expect_ok(stream_->copy_to_host(host.data(), buffer.data(), 4));
  expect_ok(stream_->synchronize(soon()));
  EXPECT_EQ(std::vector<int>(host.as<uint8_t>(), host.as<uint8_t>() + 4),
            (std::vector<int>{2, 2, 1, 1}));
}

TEST(CudaDevice, NamesTheGpuThatIsNotThere) {
  const absl::Status missing = cuda::create_device(gpu(63)).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(text(missing), HasSubstr("device cuda:63 does not exist: this process sees"));
}

// In a process of its own: the answer is asked for once.
void print_status_of_device_0(const char* devices) {
  setenv("BRIGADE_EMULATION_DEVICES", devices, 1);
  const absl::Status status = cuda::create_device(gpu(0)).status();
  std::fprintf(stderr, "%s; then %s", text(status).c_str(), text(cuda::devices().status()).c_str());
  std::_Exit(status.code() == absl::StatusCode::kFailedPrecondition ? 3 : 4);
}

TEST(CudaDeviceDeathTest, OneSentenceWithoutDriverOrGpu) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      print_status_of_device_0("0"), ::testing::ExitedWithCode(3),
      "the NVIDIA driver shows no GPU to this process; use --device cpu.*; then the NVIDIA");
  EXPECT_EXIT(print_status_of_device_0("none"), ::testing::ExitedWithCode(3),
              "no NVIDIA driver on this machine; use --device cpu.*; then no NVIDIA");
}

}  // namespace
}  // namespace brigade::kernels
