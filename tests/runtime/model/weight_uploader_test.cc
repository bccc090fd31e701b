// Weights on a device hold the same bytes whichever way they came: written in place, or packed piece by
// piece and sent through pinned memory much smaller than a tensor.
#include "runtime/model/weight_uploader.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "absl/time/clock.h"
#include "kernels/core/half.h"
#include "runtime/model/tensor_rows.h"
#include "tests/support/test_env.h"

namespace brigade::runtime {
namespace {

using kernels::Buffer;
using kernels::Device;
using kernels::DeviceKind;
using kernels::DType;

// A tensor of random bits, at an odd address as in a mapped file.
struct Tensor {
  Tensor(const std::string& name, DType dtype, std::vector<int64_t> shape, std::mt19937_64& random)
      : view{name, nullptr, dtype, std::move(shape)} {
    bytes.resize(static_cast<size_t>(stored_bytes(view)) + 1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (size_t at = 1; at < bytes.size(); at += kernels::dtype_bytes(dtype)) {
      const float value = uniform(random);
      const uint16_t bits =
          dtype == DType::kBF16 ? kernels::f32_to_bf16(value) : kernels::f32_to_f16(value);
      std::memcpy(&bytes[at], dtype == DType::kF32 ? static_cast<const void*>(&value) : &bits,
                  kernels::dtype_bytes(dtype));
    }
    view.data = bytes.data() + 1;
  }
  std::vector<uint8_t> bytes;
  TensorView view;
};

std::vector<uint8_t> bytes_of(Device& device, const Buffer& buffer) {
  auto stream = *device.create_stream();
  std::vector<uint8_t> bytes(buffer.bytes());
  EXPECT_TRUE(stream->copy_to_host(bytes.data(), buffer.data(), bytes.size()).ok());
  EXPECT_TRUE(stream->synchronize(absl::Now() + absl::Seconds(30)).ok());
  return bytes;
}

// Everything that the uploader makes of these tensors.
std::vector<std::vector<uint8_t>> upload_all(DeviceKind kind, size_t piece,
                                             const std::vector<Tensor>& t) {
  auto device = *Device::create(kind, 1);
  auto staged = *kernels::StagedUpload::create(*device, {.piece_bytes = piece});
  int64_t counted = 0;
  WeightUploader uploader(*staged, {},
                          [&](const LoadProgress& progress) { counted = progress.tensors; });
  std::vector<Buffer> buffers;
  const auto keep = [&](absl::StatusOr<PackedWeights> weights) {
    ASSERT_TRUE(weights.ok()) << weights.status();
    buffers.push_back(std::move(weights->buffer));
  };
  keep(uploader.matrix({&t[0].view, &t[1].view, &t[2].view}));  // of three dtypes
  keep(uploader.matrix({&t[0].view, &t[0].view}));
  keep(uploader.gate_up(t[3].view, t[4].view, DType::kF32));
  keep(uploader.gate_up(t[3].view, t[3].view, DType::kBF16));
  keep(uploader.matrix_as(t[4].view, DType::kF32));
  buffers.push_back(*uploader.vector_f32({&t[5].view, &t[6].view}));
  buffers.push_back(*uploader.rows(t[1].view));
  EXPECT_TRUE(uploader.finish().ok());
  EXPECT_EQ(counted, 3 + 2 + 2 + 2 + 1 + 2 + 1);
  std::vector<std::vector<uint8_t>> bytes;
  for (const Buffer& buffer : buffers) bytes.push_back(bytes_of(*device, buffer));
  return bytes;
}

TEST(WeightUploader, PiecesMakeTheSameWeights) {
  std::mt19937_64 random(tests::test_seed());
  std::vector<Tensor> tensors;
  tensors.emplace_back("q", DType::kBF16, std::vector<int64_t>{37, 45}, random);
  tensors.emplace_back("k", DType::kF16, std::vector<int64_t>{9, 45}, random);
  tensors.emplace_back("v", DType::kF32, std::vector<int64_t>{21, 45}, random);
  tensors.emplace_back("gate", DType::kBF16, std::vector<int64_t>{35, 64}, random);
  tensors.emplace_back("up", DType::kF32, std::vector<int64_t>{35, 64}, random);
  tensors.emplace_back("norm", DType::kF16, std::vector<int64_t>{45}, random);
  tensors.emplace_back("bias", DType::kF32, std::vector<int64_t>{7}, random);
  const auto in_place = upload_all(DeviceKind::kCpu, 64, tensors);
  for (const size_t piece : {64, 320, 1 << 20}) {
    EXPECT_EQ(upload_all(DeviceKind::kCpuAsync, piece, tensors), in_place)
        << "pieces of " << piece << ", seed " << tests::test_seed();
  }
}

// Rows of three tensors as one matrix in f32, against what joining and widening them whole gives.
TEST(TensorRows, JoinsAndWidensAFewRowsAtATime) {
  std::mt19937_64 random(tests::test_seed());
  const Tensor a("a", DType::kBF16, {3, 5}, random), b("b", DType::kF16, {1, 5}, random),
      c("c", DType::kF32, {4, 5}, random);
  const std::vector<const TensorView*> parts = {&a.view, &b.view, &c.view};
  EXPECT_EQ(common_dtype(parts), DType::kF32);
  std::vector<float> whole;
  for (const TensorView* part : parts) {
    std::vector<float> storage;
    const size_t bytes = static_cast<size_t>(num_elements(*part)) * sizeof(float);
    const size_t at = whole.size();
    whole.resize(at + bytes / sizeof(float));
    std::memcpy(&whole[at], in_dtype(*part, DType::kF32, storage), bytes);
  }
  const TensorRows rows(parts, DType::kF32);
  EXPECT_EQ(rows.rows(), 8);
  EXPECT_EQ(rows.width(), 5);
  for (int64_t first = 0; first < 8; ++first) {
    for (int64_t count = 1; first + count <= 8; ++count) {
      EXPECT_EQ(std::memcmp(rows(first, count), &whole[first * 5], count * 5 * sizeof(float)), 0)
          << first << " " << count;
    }
  }
  EXPECT_EQ(rows(5, 2), static_cast<const uint8_t*>(c.view.data) + 5 * sizeof(float))
      << "read where they lie";
}

TEST(WeightUploader, WithoutRoomTheTensorIsNamed) {
  auto device = *Device::create(DeviceKind::kCpuAsync, 1);
  auto staged = *kernels::StagedUpload::create(*device);
  WeightUploader uploader(*staged, {}, nullptr);
  const uint8_t byte = 0;
  const TensorView huge{"model.embed_tokens.weight", &byte, DType::kF32, {1 << 20, 1 << 20}};
  const absl::Status full = uploader.rows(huge).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_EQ(std::string(full.message()).rfind("model.embed_tokens.weight: device cpu_async", 0), 0u)
      << full;
}

}  // namespace
}  // namespace brigade::runtime
