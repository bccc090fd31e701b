#include "kernels/ops/numerics_probe.h"

#include <xxhash.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/ops/probe_bench.h"

namespace brigade::kernels {

std::vector<uint8_t> ProbeNumbers::values(DType dtype, size_t count) {
  const size_t size = dtype_bytes(dtype);
  std::vector<uint8_t> bytes(count * size);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t word = next();
    const auto sign = static_cast<uint32_t>(word & 1);
    const auto down = static_cast<uint32_t>((word >> 1) % 7);  // exponent: 0 to -6
    uint32_t bits = sign << 31 | (127 - down) << 23 | static_cast<uint32_t>(word >> 41);
    if (dtype == DType::kBF16) bits >>= 16;
    if (dtype == DType::kF16) bits = sign << 15 | (15 - down) << 10 | (bits & 0x7FFFFFu) >> 13;
    std::memcpy(&bytes[i * size], &bits, size);  // little-endian
  }
  return bytes;
}

absl::StatusOr<Buffer> ProbeBench::upload(const void* data, size_t bytes) {
  ASSIGN_OR_RETURN(Buffer buffer, allocate(bytes));
  RETURN_IF_ERROR(stream_.copy_to_device(buffer.data(), data, bytes));
  RETURN_IF_ERROR(wait());
  return buffer;
}

absl::StatusOr<std::vector<uint8_t>> ProbeBench::download(const Buffer& buffer) {
  std::vector<uint8_t> bytes(buffer.bytes());
  RETURN_IF_ERROR(stream_.copy_to_host(bytes.data(), buffer.data(), buffer.bytes()));
  RETURN_IF_ERROR(wait());
  return bytes;
}

absl::Status ProbeBench::keep(std::string name, const Buffer& buffer) {
  ASSIGN_OR_RETURN(std::vector<uint8_t> bytes, download(buffer));
  outputs_.push_back({std::move(name), std::move(bytes)});
  return absl::OkStatus();
}

void ProbeBench::keep(std::string name, const void* bits, size_t bytes) {
  const auto* first = static_cast<const uint8_t*>(bits);
  outputs_.push_back({std::move(name), std::vector<uint8_t>(first, first + bytes)});
}

absl::StatusOr<std::vector<ProbeOutput>> run_numerics_probe(Device& device) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.create_stream());
  ProbeBench bench(device, *stream);
  for (const auto piece : {probe_math, probe_row_ops, probe_matmul, probe_experts, probe_attention,
                           probe_router, probe_sampling}) {
    RETURN_IF_ERROR(piece(bench));
  }
  return bench.take_outputs();
}

uint64_t hash_probe(std::span<const ProbeOutput> outputs) {
  uint64_t hash = 0;
  for (const ProbeOutput& output : outputs) {
    hash = XXH3_64bits_withSeed(output.name.data(), output.name.size(), hash);
    hash = XXH3_64bits_withSeed(output.bytes.data(), output.bytes.size(), hash);
  }
  return hash;
}

absl::StatusOr<uint64_t> numerics_probe(Device& device) {
  ASSIGN_OR_RETURN(const std::vector<ProbeOutput> outputs, run_numerics_probe(device));
  return hash_probe(outputs);
}

std::string numerics_text(uint64_t probe, DType wire_dtype, DType kv_dtype) {
  return absl::StrCat("probe ", absl::Hex(probe, absl::kZeroPad16), ", wire ",
                      dtype_name(wire_dtype), ", KV ", dtype_name(kv_dtype));
}

// Over the text: the dtypes' numbers may change, their names do not.
uint64_t numerics_id(uint64_t probe, DType wire_dtype, DType kv_dtype) {
  const std::string text = numerics_text(probe, wire_dtype, kv_dtype);
  return XXH3_64bits(text.data(), text.size());
}

absl::StatusOr<Numerics> numerics_of(Device& device, DType wire_dtype, DType kv_dtype) {
  ASSIGN_OR_RETURN(const uint64_t probe, numerics_probe(device));
  Numerics numerics{numerics_id(probe, wire_dtype, kv_dtype),
                    numerics_text(probe, wire_dtype, kv_dtype)};
  if (device.keeps_bits()) return numerics;
  numerics.text = absl::StrCat("fast GPU maths, wire ", dtype_name(wire_dtype), ", KV ",
                               dtype_name(kv_dtype));
  numerics.id = XXH3_64bits(numerics.text.data(), numerics.text.size());
  return numerics;
}

}  // namespace brigade::kernels
