#include "kernels/core/device_cpu.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace brigade::kernels {
namespace {

constexpr size_t kAlignment = 64;
// From this size on memory is mapped and backed by huge pages: weight panels are read in long
// streams, and page walks cost up to a tenth of the bandwidth there.
constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kMapFrom = 2 * kHugePage;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t physical_bytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
}

// 2 MiB aligned: maps one huge page more and gives both ends back. Null when there is no room.
void* map_large(size_t bytes) {
  const size_t wanted = round_up(bytes, kHugePage);
  void* mapped = mmap(nullptr, wanted + kHugePage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const uintptr_t start = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = round_up(start, kHugePage);
  if (aligned > start) munmap(mapped, aligned - start);
  const size_t behind = start + kHugePage - aligned;
  if (behind > 0) munmap(reinterpret_cast<void*>(aligned + wanted), behind);
  void* data = reinterpret_cast<void*>(aligned);
  madvise(data, wanted, MADV_HUGEPAGE);  // a wish; refusal changes nothing
  return data;
}

class CpuStreamImpl final : public CpuStream {
 public:
  CpuStreamImpl(Device& device, int threads) : device_(device), threads_(threads) {}
  Device& device() const override { return device_; }
  ThreadPool& threads() override { return threads_; }

  absl::Status copy_to_device(void* device_to, const void* host_from, size_t bytes) override {
    return copy(device_to, host_from, bytes);
  }
  absl::Status copy_to_host(void* host_to, const void* device_from, size_t bytes) override {
    return copy(host_to, device_from, bytes);
  }
  absl::Status copy_on_device(void* device_to, const void* device_from, size_t bytes) override {
    return copy(device_to, device_from, bytes);
  }
  absl::Status fill_bytes(void* device_to, uint8_t value, size_t bytes) override {
    if (bytes > 0) std::memset(device_to, value, bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<Event> record(Waker*) override { return Event(); }
  absl::Status synchronize(absl::Time) override { return absl::OkStatus(); }

 private:
  static absl::Status copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memmove(to, from, bytes);
    return absl::OkStatus();
  }

  Device& device_;
  ThreadPool threads_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads) {}
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override { return "cpu"; }
  int num_threads() const override { return threads_; }

  absl::StatusOr<void*> allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes <= physical_bytes()) {
      data = bytes >= kMapFrom ? map_large(bytes)
                               : std::aligned_alloc(kAlignment, round_up(bytes + (bytes == 0), kAlignment));
    }
    if (data == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("device cpu cannot allocate ", bytes, " bytes: ", bytes_in_use(),
                       " are in use and the machine has ", physical_bytes()));
    }
    bytes_in_use_ += bytes;
    return data;
  }

  void free(void* data, size_t bytes) override {
    if (data == nullptr) return;
    if (bytes >= kMapFrom) {
      munmap(data, round_up(bytes, kHugePage));
    } else {
      std::free(data);
    }
    bytes_in_use_ -= bytes;
  }

  size_t bytes_in_use() const override { return bytes_in_use_; }

  absl::StatusOr<std::unique_ptr<Stream>> create_stream() override {
    return std::make_unique<CpuStreamImpl>(*this, threads_);
  }

 private:
  const int threads_;
  std::atomic<size_t> bytes_in_use_{0};
};

}  // namespace

std::unique_ptr<Device> create_cpu_device(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace brigade::kernels
