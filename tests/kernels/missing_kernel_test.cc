// A CUDA module that lacks a kernel: the op is an error that names it, never another device's work.
#include "gtest/gtest.h"
#include "kernels/ops/cuda_ops.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/dispatch.h"

namespace brigade::kernels {
namespace {

// A device of a module without any kernel; nothing else of it is used.
class BareDevice : public CudaDevice {
 public:
  const CudaOps& ops() const override { return ops_; }
  int ordinal() const override { return 0; }
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return "bare"; }
  int num_threads() const override { return 1; }
  absl::StatusOr<void*> allocate(size_t) override { return unused(); }
  void free(void*, size_t) override {}
  size_t bytes_in_use() const override { return 0; }
  absl::StatusOr<std::unique_ptr<Stream>> create_stream() override { return unused(); }

 private:
  static absl::Status unused() { return absl::InternalError("not part of this test"); }
  const CudaOps ops_;
};

class BareStream : public CudaStream {
 public:
  explicit BareStream(BareDevice& device) : device_(device) {}
  const CudaOps& ops() const override { return device_.ops(); }
  void* native() const override { return nullptr; }
  int record_for(void*) override { return 0; }
  Device& device() const override { return device_; }
  absl::Status copy_to_device(void*, const void*, size_t) override { return absl::OkStatus(); }
  absl::Status copy_to_host(void*, const void*, size_t) override { return absl::OkStatus(); }
  absl::Status copy_on_device(void*, const void*, size_t) override { return absl::OkStatus(); }
  absl::Status fill_bytes(void*, uint8_t, size_t) override { return absl::OkStatus(); }
  absl::StatusOr<Event> record(Waker*) override { return absl::InternalError("no events"); }
  absl::Status synchronize(absl::Time) override { return absl::OkStatus(); }

 private:
  BareDevice& device_;
};

template <typename Args>
void expect_missing(Stream& stream, const char* op) {
  const auto on_cpu = [](const Args&, ThreadPool&) { ADD_FAILURE() << "ran on the CPU"; };
  const absl::Status status = dispatch<Args>(stream, Args(), on_cpu, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << op;
  EXPECT_EQ(std::string(status.message()),
            std::string(op) + ": the CUDA module has no kernel for it");
}

TEST(MissingKernel, EveryOpNamesItself) {
  BareDevice device;
  BareStream stream(device);
  expect_missing<EmbeddingArgs>(stream, "embedding");
  expect_missing<RmsNormArgs>(stream, "rms_norm");
  expect_missing<MatmulArgs>(stream, "matmul");
  expect_missing<RopeKvWriteArgs>(stream, "rope_kv_write");
  expect_missing<GatherRowsArgs>(stream, "gather_rows");
  expect_missing<PagedAttentionArgs>(stream, "paged_attention");
  expect_missing<RouterTopKArgs>(stream, "router_top_k");
  expect_missing<GroupTermsArgs>(stream, "group_terms");
  expect_missing<ExpertFfnArgs>(stream, "expert_ffn");
  expect_missing<CombineArgs>(stream, "combine");
  expect_missing<ArgmaxRowsArgs>(stream, "argmax_rows");
  expect_missing<PolicyArgs>(stream, "policy");
  expect_missing<AcceptDraftsArgs>(stream, "accept_drafts");
}

TEST(MissingKernel, TheOpItselfIsTheError) {
  BareDevice device;
  BareStream stream(device);
  float x[4] = {}, out[4] = {};
  const int32_t index[1] = {0};
  const absl::Status status =
      gather_rows(stream, {.x = x, .index = index, .out = out, .rows = 1, .width = 4});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
}

}  // namespace
}  // namespace brigade::kernels
