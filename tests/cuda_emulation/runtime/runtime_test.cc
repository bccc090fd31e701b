// The runtime stand-in: order within and between streams, copies, graphs, and what the runtime
// refuses.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/cuda_emulation/device_array.h"
#include "tests/cuda_emulation/runtime/control.h"

namespace brigade::cuda_emulation {
namespace {

class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

template <typename T>
T* pinned(size_t count) {
  void* data = nullptr;
  EXPECT_EQ(cudaHostAlloc(&data, count * sizeof(T), cudaHostAllocDefault), cudaSuccess);
  return static_cast<T*>(data);
}

// Holds a stream until it is opened.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    EXPECT_EQ(cudaLaunchHostFunc(
                  stream, [](void* gate) { static_cast<Gate*>(gate)->open_.wait(false); }, this),
              cudaSuccess);
  }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false};
};

TEST(CudaRuntime, CopiesRunInTheStreamsOrder) {
  const Stream stream;
  const DeviceArray<int> device(1000);
  int* const in = pinned<int>(1000);
  int* const out = pinned<int>(1000);
  std::iota(in, in + 1000, 1);
  out[0] = 5;
  Gate gate(stream);
  ASSERT_EQ(cudaMemcpyAsync(device.data(), in, 4000, cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(out, device.data(), 4000, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  EXPECT_EQ(out[0], -1);  // read too early: not there yet
  in[0] = 77;             // changed too early: the copy takes the new value
  gate.open();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(out[0], 77);
  EXPECT_EQ(out[999], 1000);
  EXPECT_EQ(cudaFreeHost(in), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(out), cudaSuccess);
}

TEST(CudaRuntime, PageableMemoryIsStagedAndWaitedFor) {
  const Stream stream;
  const DeviceArray<int> device(100);
  std::vector<int> host(100, 3), back(100);
  ASSERT_EQ(cudaMemcpyAsync(device.data(), host.data(), 400, cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  host.assign(100, 4);
  const uint64_t before = counters().blocking_copies;
  ASSERT_EQ(cudaMemcpyAsync(back.data(), device.data(), 400, cudaMemcpyDeviceToHost, stream),
            cudaSuccess);
  EXPECT_EQ(back, std::vector<int>(100, 3));
  EXPECT_EQ(counters().blocking_copies, before + 1);
}

TEST(CudaRuntime, EventsOrderStreams) {
  set_stream_delay(2000, 1);
  const Stream producer, consumer;
  const DeviceArray<int> data(64);
  int* const out = pinned<int>(64);
  cudaEvent_t written = nullptr, start = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&written, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&start), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(written), cudaSuccess);  // never recorded
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(cudaMemsetAsync(data.data(), i, 256, producer), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(written, producer), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(consumer, written, 0), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(out, data.data(), 256, cudaMemcpyDeviceToHost, consumer),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(consumer), cudaSuccess);
    EXPECT_EQ(out[63], i * 0x01010101);
  }
  float elapsed = 0;
  ASSERT_EQ(cudaEventRecord(start, producer), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(start), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&elapsed, start, written),
            cudaErrorInvalidResourceHandle);  // without timing
  EXPECT_EQ(cudaEventElapsedTime(&elapsed, start, start), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(written), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(written), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(start), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(out), cudaSuccess);
  set_stream_delay(100, 16);
}

TEST(CudaRuntime, GraphsReplayWhatWasCaptured) {
  const Stream stream;
  const DeviceArray<int> device(16);
  int* const host = pinned<int>(32);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(device.data(), host, 64, cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(host + 16, device.data(), 64, cudaMemcpyDeviceToHost, stream),
            cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaErrorInvalidValue);
  for (int i = 0; i < 3; ++i) {
    host[5] = i;
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(host[21], i);
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
}

TEST(CudaRuntime, ACaptureForbidsCallsThatWouldWaitOrAllocate) {
  const Stream stream;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  const auto spoiled_by = [&](const std::function<cudaError_t()>& call) {
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
  };
  void* data = nullptr;
  std::vector<char> pageable(8);
  const DeviceArray<char> device(8);
  spoiled_by([&] { return cudaMalloc(&data, 8); });
  spoiled_by([&] { return cudaStreamSynchronize(stream); });
  spoiled_by([&] { return cudaEventQuery(event); });
  spoiled_by([&] { return cudaDeviceSynchronize(); });
  spoiled_by([&] {
    return cudaMemcpyAsync(device.data(), pageable.data(), 8, cudaMemcpyHostToDevice, stream);
  });
  // Another thread may, while the capture is this thread's own.
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  std::thread([&] { EXPECT_EQ(cudaEventQuery(event), cudaSuccess); }).join();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST(CudaRuntime, RefusesWrongKindsAndFreedHandles) {
  const Stream stream;
  const DeviceArray<char> device(100);
  std::vector<char> host(100);
  EXPECT_EQ(cudaMemcpyAsync(device.data(), host.data(), 100, cudaMemcpyDeviceToHost, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device.data(), host.data(), 101, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(nullptr, host.data(), 1, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(host.data(), 0, 1, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(host.data()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device.data() + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  cudaStream_t gone = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(gone), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(gone), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemsetAsync(device.data(), 0, 1, gone), cudaErrorInvalidResourceHandle);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, size_t{1} << 40), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(CudaRuntime, WithoutADriverEveryCallSaysSo) {
  setenv("BRIGADE_EMULATION_DEVICES", "none", 1);
  int count = 7;
  void* data = nullptr;
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(cudaMalloc(&data, 4), cudaErrorInsufficientDriver);
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, 0), cudaErrorInsufficientDriver);
  setenv("BRIGADE_EMULATION_DEVICES", "0", 1);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  setenv("BRIGADE_EMULATION_DEVICES", "3", 1);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 3);
  unsetenv("BRIGADE_EMULATION_DEVICES");
  EXPECT_EQ(cudaGetLastError(), cudaErrorNoDevice);
}

}  // namespace
}  // namespace brigade::cuda_emulation
