// Bytes of any number reach the device through pieces that are written again only when they have
// arrived; a device that hangs or fails ends an upload with a sentence. Also the pool of slots into
// which they go.
#include "kernels/core/staged_upload.h"

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/device_cpu_async.h"
#include "kernels/core/slot_pool.h"
#include "tests/kernels/op_runner.h"

namespace brigade::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kPiece = 256;

absl::Time soon() { return absl::Now() + absl::Seconds(30); }
void expect_ok(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }
uint8_t byte_at(size_t i, int round) { return static_cast<uint8_t>(i * 31 + i / 251 + round); }

std::vector<uint8_t> read(Stream& stream, const Buffer& buffer, size_t bytes) {
  std::vector<uint8_t> got(bytes);
  expect_ok(stream.copy_to_host(got.data(), buffer.data(), bytes));
  expect_ok(stream.synchronize(soon()));
  return got;
}

class StagedUploadTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    device_ = *Device::create(GetParam(), 1);
    stream_ = *device_->create_stream();
  }
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};
const auto kDevices = ::testing::ValuesIn(tests::device_kinds());
const auto kDeviceName = [](const auto& info) {
  return info.param == DeviceKind::kCpu ? "cpu" : "cpu_async";
};
INSTANTIATE_TEST_SUITE_P(Devices, StagedUploadTest, kDevices, kDeviceName);

TEST_P(StagedUploadTest, BytesOfAnyNumberArrive) {
  for (const int pieces : {1, 2, 3}) {
    auto upload = StagedUpload::create(*device_, {.piece_bytes = kPiece, .pieces = pieces});
    ASSERT_TRUE(upload.ok()) << upload.status();
    std::vector<Buffer> buffers;
    const std::vector<size_t> sizes = {0, 1, 63, kPiece, kPiece + 1, 7 * kPiece + 19};
    for (const size_t bytes : sizes) {
      buffers.push_back(*Buffer::allocate(*device_, bytes));
      size_t next = 0;
      expect_ok((*upload)->fill("it", buffers.back().data(), bytes,
                                [&](size_t first, size_t count, void* to) {
                                  EXPECT_EQ(first, next) << "in order, without gaps";
                                  next = first + count;
                                  for (size_t i = 0; i < count; ++i)
                                    static_cast<uint8_t*>(to)[i] = byte_at(first + i, pieces);
                                }));
      EXPECT_EQ(next, bytes);
    }
    // One wait for all of them.
    const Event filled = *(*upload)->filled();
    expect_ok((*upload)->finish());
    EXPECT_TRUE(filled.ready());
    for (size_t at = 0; at < sizes.size(); ++at) {
      const std::vector<uint8_t> got = read(*stream_, buffers[at], sizes[at]);
      for (size_t i = 0; i < sizes[at]; ++i) ASSERT_EQ(got[i], byte_at(i, pieces)) << sizes[at];
    }
  }
  for (const StagedUploadOptions& wrong : {StagedUploadOptions{.piece_bytes = 0},
                                           StagedUploadOptions{.piece_bytes = 65},
                                           StagedUploadOptions{.pieces = 0}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(StagedUpload::create(*device_, wrong).status()));
  }
}

// The device stands still: two pieces are written, no third. A piece that is used again too early
// would be written here.
TEST(StagedUpload, WaitsForAPieceUntilItsTime) {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  auto device = *Device::create(DeviceKind::kCpuAsync, 1);
  const Buffer buffer = *Buffer::allocate(*device, 5 * kPiece);
  auto upload = *StagedUpload::create(
      *device, {.piece_bytes = kPiece, .pieces = 2, .timeout = absl::Milliseconds(50)});
  expect_ok(static_cast<CpuAsyncStream*>(upload->stream())->enqueue([&](ThreadPool&) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return open; });
    return absl::OkStatus();
  }));
  int writes = 0;
  const auto write = [&](size_t, size_t bytes, void* to) {
    std::memset(to, ++writes, bytes);
  };
  const absl::Status late = upload->fill("layers.3.up", buffer.data(), buffer.bytes(), write);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late));
  EXPECT_THAT(std::string(late.message()),
              AllOf(HasSubstr("uploading layers.3.up"), HasSubstr("not reached in time")));
  EXPECT_EQ(writes, 2);
  EXPECT_EQ(upload->fill("layers.4.up", buffer.data(), 1, write), late) << "pieces are lost";
  EXPECT_EQ(upload->finish(), late);
  {
    std::lock_guard<std::mutex> lock(mutex);
    open = true;
  }
  changed.notify_all();
}

TEST(StagedUpload, AnErrorOfTheDeviceStaysAndNamesWhatWasUploaded) {
  auto device = *Device::create(DeviceKind::kCpuAsync, 1);
  const Buffer buffer = *Buffer::allocate(*device, 5 * kPiece);
  auto upload = *StagedUpload::create(*device, {.piece_bytes = kPiece});
  const auto write = [&](size_t first, size_t, void*) {
    if (first != 2 * kPiece) return;
    expect_ok(static_cast<CpuAsyncStream*>(upload->stream())->enqueue([](ThreadPool&) {
      return absl::InternalError("the bus is on fire");
    }));
    EXPECT_FALSE(upload->stream()->synchronize(soon()).ok());
  };
  const absl::Status failed = upload->fill("lm_head", buffer.data(), buffer.bytes(), write);
  EXPECT_EQ(std::string(failed.message()), "uploading lm_head: the bus is on fire");
  EXPECT_EQ(upload->fill("next", buffer.data(), 1, write), failed);
  EXPECT_EQ(upload->filled().status(), failed);
}

using SlotPoolTest = StagedUploadTest;
INSTANTIATE_TEST_SUITE_P(Devices, SlotPoolTest, kDevices, kDeviceName);

TEST_P(SlotPoolTest, WhatIsPlannedComesAndGoesWithoutTheDevice) {
  constexpr size_t kBytes = 1000;
  const bool planned = GetParam() != DeviceKind::kCpu;
  const size_t each = planned ? 1024 : kBytes;
  {
    SlotPool pool(*device_, kBytes);
    expect_ok(pool.plan(3));
    EXPECT_EQ(pool.slots(), planned ? 3u : 0u);
    std::vector<Slot> slots;
    for (int i = 0; i < 3; ++i) slots.push_back(*pool.take());
    EXPECT_EQ(device_->bytes_in_use(), 3 * each);
    EXPECT_EQ(pool.reserved_bytes(), 3 * each);
    EXPECT_EQ(pool.slots_in_use(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(slots[i].data()) % 64, 0u);
      expect_ok(stream_->fill_bytes(slots[i].data(), static_cast<uint8_t>(i), kBytes));
      for (int j = 0; j < i; ++j) EXPECT_NE(slots[i].data(), slots[j].data());
    }
    expect_ok(stream_->synchronize(soon()));
    for (int round = 0; round < 5; ++round) {
      const void* const was = slots[1].data();
      slots[1] = Slot();
      EXPECT_EQ(device_->bytes_in_use(), planned ? 3 * each : 2 * each);
      slots[1] = *pool.take();
      EXPECT_TRUE(!planned || slots[1].data() == was) << "the one given back last";
    }
    const Slot moved = std::move(slots[0]);
    EXPECT_EQ(slots[0].data(), nullptr);
    EXPECT_EQ(slots[0].device(), nullptr);
    EXPECT_EQ(moved.device(), device_.get());
  }
  EXPECT_EQ(device_->bytes_in_use(), 0u);
}

TEST_P(SlotPoolTest, BeyondThePlanAChunkIsHadAndFreedWhenItIsEmpty) {
  SlotPool pool(*device_, 256);
  expect_ok(pool.plan(1));
  Slot first = *pool.take();
  const size_t before = device_->bytes_in_use();
  Slot second = *pool.take(), third = *pool.take();
  const bool one_by_one = GetParam() == DeviceKind::kCpu;
  EXPECT_EQ(pool.slots(), one_by_one ? 3 : 1 + SlotPool::kChunkSlots);
  second = Slot();
  EXPECT_GT(device_->bytes_in_use(), before);
  third = Slot();
  EXPECT_EQ(device_->bytes_in_use(), before) << "empty";
  // A plan keeps what is there.
  second = *pool.take();
  expect_ok(pool.plan(2));
  const size_t with_chunk = device_->bytes_in_use();
  second = Slot();
  EXPECT_EQ(device_->bytes_in_use(), one_by_one ? before : with_chunk);
}

TEST_P(SlotPoolTest, WhatIsReservedIsOneAllocationUntilAllIsBack) {
  SlotPool pool(*device_, 256);
  expect_ok(pool.plan(1));
  expect_ok(pool.reserve(40));
  const bool planned = GetParam() != DeviceKind::kCpu;
  const size_t reserved = device_->bytes_in_use();
  EXPECT_EQ(pool.slots(), planned ? 40u : 0u);
  std::vector<Slot> slots;
  for (int i = 0; i < 40; ++i) slots.push_back(*pool.take());
  if (planned) {
    EXPECT_EQ(device_->bytes_in_use(), reserved);
  }
  slots.resize(2);
  EXPECT_EQ(pool.slots(), planned ? 40u : 2u);
  slots.clear();
  EXPECT_EQ(pool.slots(), planned ? 1u : 0u);
}

TEST(SlotPool, SlotsOutliveThePoolAndTooManyAreAnErrorWithTheSizes) {
  auto device = *Device::create(DeviceKind::kCpuAsync, 1);
  Slot slot;
  {
    SlotPool pool(*device, 100);
    slot = *pool.take();
    const absl::Status full = pool.plan(size_t{1} << 40);
    EXPECT_TRUE(absl::IsResourceExhausted(full));
    EXPECT_THAT(std::string(full.message()), HasSubstr("cannot allocate"));
    EXPECT_EQ(pool.slots(), SlotPool::kChunkSlots) << "nothing has changed";
    SlotPool huge(*device, size_t{1} << 40);
    EXPECT_TRUE(absl::IsResourceExhausted(huge.take().status()));
  }
  EXPECT_GT(device->bytes_in_use(), 0u);
  slot = Slot();
  EXPECT_EQ(device->bytes_in_use(), 0u);
}

}  // namespace
}  // namespace brigade::kernels
