#include "kernels/core/device.h"

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "kernels/core/device_cpu_async.h"
#include "kernels/ops/dense.h"
#include "tests/kernels/op_runner.h"

namespace brigade::kernels {
namespace {

using ::testing::HasSubstr;
using tests::OpRunner;

absl::Time soon() { return absl::Now() + absl::Seconds(30); }

// Holds a stream's thread until opened.
class Gate {
 public:
  void open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void close_stream(OpRunner& runner) {
    auto& stream = static_cast<CpuAsyncStream&>(runner.stream());
    OpRunner::expect_ok(stream.enqueue([this](ThreadPool&) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return open_; });
      return absl::OkStatus();
    }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

class DeviceTest : public ::testing::TestWithParam<DeviceKind> {};
INSTANTIATE_TEST_SUITE_P(Devices, DeviceTest, ::testing::ValuesIn(tests::device_kinds()),
                         [](const auto& info) {
                           return info.param == DeviceKind::kCpu ? "cpu" : "cpu_async";
                         });

TEST_P(DeviceTest, CopiesThereAndBack) {
  OpRunner runner(GetParam(), 2);
  std::vector<int32_t> values(1000);
  std::iota(values.begin(), values.end(), 1);
  const Buffer first = runner.upload(values);
  const Buffer second = runner.allocate(first.bytes());
  OpRunner::expect_ok(
      runner.stream().copy_on_device(second.data(), first.data(), first.bytes()));
  OpRunner::expect_ok(runner.stream().fill_bytes(second.data(), 7, 4));
  values[0] = 0x07070707;
  EXPECT_EQ(runner.download<int32_t>(second), values);
}

TEST_P(DeviceTest, CountsAndAlignsMemory) {
  OpRunner runner(GetParam(), 1);
  EXPECT_EQ(runner.device().bytes_in_use(), 0u);
  {
    Buffer small = runner.allocate(10);
    Buffer large = runner.allocate(size_t(9) << 20);
    const Buffer empty = runner.allocate(0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data()) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % 64, 0u);
    EXPECT_EQ(runner.device().bytes_in_use(), (size_t(9) << 20) + 10);
    const Buffer moved = std::move(large);
    EXPECT_EQ(large.data(), nullptr);
    small = Buffer();
    EXPECT_EQ(runner.device().bytes_in_use(), size_t(9) << 20);
  }
  EXPECT_EQ(runner.device().bytes_in_use(), 0u);
}

TEST_P(DeviceTest, TooMuchMemoryIsAnErrorWithTheSize) {
  OpRunner runner(GetParam(), 1);
  const auto buffer = Buffer::allocate(runner.device(), size_t(1) << 46);
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(buffer.status().message()), HasSubstr("70368744177664"));
}

TEST_P(DeviceTest, EventsFollowTheWork) {
  OpRunner runner(GetParam(), 1);
  Waker waker;
  const auto event = runner.stream().record(&waker);
  ASSERT_TRUE(event.ok()) << event.status();
  if (GetParam() == DeviceKind::kCpuAsync) {
    EXPECT_TRUE(waker.wait_until(soon()));
  }
  OpRunner::expect_ok(event->wait_until(soon()));
  EXPECT_TRUE(event->ready());
}

TEST(Device, NamesUnknownKindsAndThreadCounts) {
  EXPECT_EQ(Device::parse("cpu_async")->kind, DeviceKind::kCpuAsync);
  EXPECT_EQ(Device::parse("cuda")->kind, DeviceKind::kCuda);
  EXPECT_EQ(Device::parse("cuda:17")->ordinal, 17);
  for (const char* wrong : {"gpu", "cuda:", "cuda:-1", "cuda:0x1", "cuda:100", "cuda1", ""}) {
    EXPECT_THAT(std::string(Device::parse(wrong).status().message()),
                HasSubstr("'" + std::string(wrong) + "'"));
  }
  EXPECT_THAT(std::string(Device::create(DeviceKind::kCpu, 0).status().message()),
              HasSubstr("threads is 0"));
}

// A host without the module says which places were looked at; the CPU devices stay usable.
TEST(Device, NamesTheCudaModuleThatIsNotThere) {
  kernels::DeviceOptions options;
  options.kind = DeviceKind::kCuda;
  options.cuda_module = "/nonexistent/brigade_cuda.so";
  const absl::Status missing = Device::create(options).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nonexistent/brigade_cuda.so"));
  EXPECT_TRUE(Device::create(DeviceKind::kCpu, 1).ok());
}

using CpuAsyncDeathTest = ::testing::Test;

TEST(CpuAsyncDeathTest, HostAccessFaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  OpRunner runner(DeviceKind::kCpuAsync, 1);
  const Buffer buffer = runner.allocate(64);
  EXPECT_DEATH({ *buffer.as<volatile float>() = 1.0f; }, "");
  EXPECT_DEATH({ std::fprintf(stderr, "%f", *buffer.as<volatile float>()); }, "");
}

// Work that kept a freed address must not find its bytes there any more.
TEST(CpuAsyncDeathTest, UseAfterFreeFaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        OpRunner runner(DeviceKind::kCpuAsync, 1);
        Gate gate;
        gate.close_stream(runner);
        Buffer buffer = runner.allocate(64);
        OpRunner::expect_ok(runner.stream().fill_bytes(buffer.data(), 1, 64));
        buffer = Buffer();
        gate.open();
        runner.synchronize();
      },
      "");
}

TEST(CpuAsync, AMissingWaitShows) {
  OpRunner runner(DeviceKind::kCpuAsync, 1);
  const Buffer buffer = runner.upload(std::vector<float>{1, 2, 3});
  Gate gate;
  gate.close_stream(runner);
  std::vector<float> host(3, 5.0f);
  OpRunner::expect_ok(runner.stream().copy_to_host(host.data(), buffer.data(), buffer.bytes()));
  const auto event = runner.stream().record();
  ASSERT_TRUE(event.ok());
  EXPECT_FALSE(event->ready());
  EXPECT_EQ(event->wait_until(absl::Now()).code(), absl::StatusCode::kDeadlineExceeded);
  for (const float value : host) EXPECT_TRUE(std::isnan(value));  // not the old 5, not yet the new
  gate.open();
  OpRunner::expect_ok(event->wait_until(soon()));
  EXPECT_EQ(host, (std::vector<float>{1, 2, 3}));
}

TEST(CpuAsync, NewMemoryIsPoisoned) {
  OpRunner runner(DeviceKind::kCpuAsync, 1);
  const Buffer buffer = runner.allocate(12);
  for (const float value : runner.download<float>(buffer)) EXPECT_TRUE(std::isnan(value));
  for (const int32_t value : runner.download<int32_t>(buffer)) EXPECT_EQ(value, -1);
}

TEST(CpuAsync, OpsRefuseHostMemoryAndShortBuffers) {
  OpRunner runner(DeviceKind::kCpuAsync, 1);
  std::vector<float> host(32, 1.0f);
  const Buffer x = runner.upload(host), weight = runner.upload(host);
  const Buffer out = runner.allocate(31 * sizeof(float));
  RmsNormArgs args;
  args.x = x.as<float>();
  args.weight = weight.as<float>();
  args.out = out.as<float>();
  args.x_stride = args.out_stride = args.hidden = 32;
  args.rows = 1;
  EXPECT_THAT(std::string(rms_norm(runner.stream(), args).message()), HasSubstr("out is not memory"));
  args.x = host.data();
  EXPECT_THAT(std::string(rms_norm(runner.stream(), args).message()), HasSubstr("x is not memory"));
}

TEST(CpuAsync, TheFirstErrorStays) {
  OpRunner runner(DeviceKind::kCpuAsync, 1);
  auto& stream = static_cast<CpuAsyncStream&>(runner.stream());
  Gate gate;
  gate.close_stream(runner);
  OpRunner::expect_ok(stream.enqueue([](ThreadPool&) { return absl::InternalError("first"); }));
  OpRunner::expect_ok(stream.enqueue([](ThreadPool&) { return absl::InternalError("second"); }));
  const auto event = stream.record();
  gate.open();
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->wait_until(soon()).message(), "first");
  EXPECT_EQ(stream.synchronize(soon()).message(), "first");
  EXPECT_EQ(stream.record().status().message(), "first");
}

}  // namespace
}  // namespace brigade::kernels
