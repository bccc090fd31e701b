// A place where tensors live and ops run: Device, Buffer (its memory), Stream (its queue of work),
// Event (a point in a stream). Two devices on the CPU: `cpu` runs every op inline on the calling
// thread; `cpu_async` is for tests: its memory faults when host code touches it and its streams are
// threads, so a missing copy or wait shows long before a GPU is there.
//
// A stream is used by one thread at a time. Buffers are freed when their owner goes; the owner makes
// sure that no stream still uses them (synchronize first). Everything is planned at start: no call
// here except enqueue of work happens on the step path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/core/graph.h"
#include "kernels/core/thread_pool.h"
#include "kernels/core/waker.h"

namespace brigade::kernels {

enum class DeviceKind { kCpu, kCpuAsync, kCuda };

class Stream;

// identical: every kernel gives the bits of the CPU kernels. fast: tensor cores and cuBLAS where they are
// faster; rows then depend on how many share a call, and the "same words" promise is off.
enum class CudaMath { kIdentical, kFast };

struct DeviceOptions {
  DeviceKind kind = DeviceKind::kCpu;
  int threads = 1;          // compute threads per stream, the caller's included; not used by cuda
  int ordinal = 0;          // which GPU
  std::string cuda_module;  // path of brigade_cuda.so; empty: beside the binary
  CudaMath cuda_math = CudaMath::kIdentical;
};

class Device {
 public:
  static absl::StatusOr<std::unique_ptr<Device>> create(const DeviceOptions& options);
  static absl::StatusOr<std::unique_ptr<Device>> create(DeviceKind kind, int threads);
  // Kind and ordinal of "cpu", "cpu_async", "cuda" (the first GPU), "cuda:N"; INVALID_ARGUMENT names any
  // other word.
  static absl::StatusOr<DeviceOptions> parse(const std::string& name);
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;
  virtual int num_threads() const = 0;
  // 64-byte aligned; contents undefined (cpu_async: all bytes 0xFF, which reads as NaN or -1).
  // RESOURCE_EXHAUSTED with the sizes when it does not fit.
  virtual absl::StatusOr<void*> allocate(size_t bytes) = 0;
  virtual void free(void* data, size_t bytes) = 0;
  virtual size_t bytes_in_use() const = 0;
  // Of a device with memory of its own: what it has left now. 0 elsewhere.
  virtual size_t free_bytes() const { return 0; }
  // Whether a row's bits depend on that row alone and equal the CPU's: not on a GPU with fast maths.
  virtual bool keeps_bits() const { return true; }
  // Host memory for copies that do not hold up the caller; see host_buffer.h. Pinned on cuda.
  virtual absl::StatusOr<void*> allocate_pinned(size_t bytes);
  virtual void free_pinned(void* data, size_t bytes);
  virtual absl::StatusOr<std::unique_ptr<Stream>> create_stream() = 0;
  // Whether streams of this device record graphs.
  virtual bool has_graphs() const { return false; }
};

// Move-only memory on one device. Empty when default-made.
class Buffer {
 public:
  Buffer() = default;
  static absl::StatusOr<Buffer> allocate(Device& device, size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  void* data() const { return data_; }
  template <typename T>
  T* as() const { return static_cast<T*>(data_); }
  size_t bytes() const { return bytes_; }
  Device* device() const { return device_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// A point in a stream's work. ready() never blocks. Copies share the point.
class Event {
 public:
  Event() = default;  // always ready
  bool ready() const;
  // DEADLINE_EXCEEDED when the work before the point has not ended by then.
  absl::Status wait_until(absl::Time deadline) const;

  struct State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// Work runs in order. On `cpu` each call has finished when it returns. An error inside enqueued work is
// sticky: later calls on the stream return it.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() const = 0;

  // Host memory must stay valid and unchanged until the copy's point has passed. What copy_to_host
  // writes may be read only then (cpu_async fills it with 0xFF until it is there).
  virtual absl::Status copy_to_device(void* device_to, const void* host_from, size_t bytes) = 0;
  virtual absl::Status copy_to_host(void* host_to, const void* device_from, size_t bytes) = 0;
  virtual absl::Status copy_on_device(void* device_to, const void* device_from, size_t bytes) = 0;
  virtual absl::Status fill_bytes(void* device_to, uint8_t value, size_t bytes) = 0;

  // The point after everything enqueued so far. `waker`, if given, is woken once it has passed; it
  // must outlive that. On `cpu` the returned event is ready and no waker is needed or woken.
  virtual absl::StatusOr<Event> record(Waker* waker = nullptr) = 0;
  // Waits for everything enqueued. For start-up, teardown and tests; the step path never calls it.
  virtual absl::Status synchronize(absl::Time deadline) = 0;

  // From begin_capture() to end_capture() what is enqueued is recorded and does not run; record() and
  // synchronize() are refused meanwhile. An error of these three calls, or of what was to be recorded,
  // is not sticky: nothing has run of it. end_capture() ends the recording also then. UNIMPLEMENTED,
  // with the device's name, unless has_graphs().
  virtual absl::Status begin_capture();
  virtual absl::StatusOr<Graph> end_capture();
  virtual absl::Status launch(const Graph& graph);
};

}  // namespace brigade::kernels
