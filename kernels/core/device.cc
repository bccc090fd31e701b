#include "kernels/core/device.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/cpu_features.h"
#include "kernels/core/device_cpu.h"
#include "kernels/core/device_cpu_async.h"
#include "kernels/core/device_cuda.h"
#include "kernels/core/event_state.h"
#include "kernels/core/status.h"

namespace brigade::kernels {
namespace {

constexpr int kMaxThreads = 1024;
constexpr size_t kAlignment = 64;

absl::Status no_graphs(const Stream& stream) {
  return absl::UnimplementedError(
      absl::StrCat("the device ", stream.device().name(), " records no graphs"));
}

}  // namespace

absl::StatusOr<void*> Device::allocate_pinned(size_t bytes) {
  void* const data = std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment);
  if (data != nullptr) return data;
  return absl::ResourceExhaustedError(
      absl::StrCat("no host memory: ", bytes, " bytes for copies of the device ", name()));
}

void Device::free_pinned(void* data, size_t) { std::free(data); }

absl::Status Stream::begin_capture() { return no_graphs(*this); }
absl::StatusOr<Graph> Stream::end_capture() { return no_graphs(*this); }
absl::Status Stream::launch(const Graph&) { return no_graphs(*this); }

absl::StatusOr<std::unique_ptr<Device>> Device::create(const DeviceOptions& options) {
  RETURN_IF_ERROR(check_cpu());
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, "; it must be between 1 and ", kMaxThreads));
  }
  switch (options.kind) {
    case DeviceKind::kCpu: return create_cpu_device(options.threads);
    case DeviceKind::kCpuAsync: return create_cpu_async_device(options.threads);
    case DeviceKind::kCuda: {
      ASSIGN_OR_RETURN(const OpenCudaModule open, open_cuda_module(options.cuda_module));
      return open.module->create_device(options);
    }
  }
  return absl::InternalError("a device of unknown kind");
}

absl::StatusOr<std::unique_ptr<Device>> Device::create(DeviceKind kind, int threads) {
  DeviceOptions options;
  options.kind = kind;
  options.threads = threads;
  return create(options);
}

absl::StatusOr<DeviceOptions> Device::parse(const std::string& name) {
  DeviceOptions options;
  if (name == "cpu") return options;
  options.kind = DeviceKind::kCpuAsync;
  if (name == "cpu_async") return options;
  options.kind = DeviceKind::kCuda;
  if (name == "cuda") return options;
  constexpr char kPrefix[] = "cuda:";
  const std::string ordinal = name.substr(std::min(name.size(), sizeof(kPrefix) - 1));
  if (name.rfind(kPrefix, 0) == 0 && !ordinal.empty() && ordinal.size() <= 2 &&
      ordinal.find_first_not_of("0123456789") == std::string::npos &&
      absl::SimpleAtoi(ordinal, &options.ordinal)) {
    return options;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("device '", name, "' is none of cpu, cpu_async, cuda, cuda:N"));
}

absl::StatusOr<Buffer> Buffer::allocate(Device& device, size_t bytes) {
  Buffer buffer;
  ASSIGN_OR_RETURN(buffer.data_, device.allocate(bytes));
  buffer.device_ = &device;
  buffer.bytes_ = bytes;
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (device_ != nullptr) device_->free(data_, bytes_);
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Buffer::~Buffer() {
  if (device_ != nullptr) device_->free(data_, bytes_);
}

bool Event::ready() const { return state_ == nullptr || state_->ready(); }

absl::Status Event::wait_until(absl::Time deadline) const {
  return state_ == nullptr ? absl::OkStatus() : state_->wait_until(deadline);
}

}  // namespace brigade::kernels
