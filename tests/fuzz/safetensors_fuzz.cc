// Any bytes as a safetensors file, and as the header of one with a fitting length. What is accepted
// must lie inside the file and cover its data.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "runtime/model/safetensors.h"

namespace {

using brigade::runtime::parse_safetensors;
using brigade::runtime::SafetensorsEntry;

volatile uint8_t sink;

void check_file(const std::string& file) {
  const auto entries = parse_safetensors(file, "fuzz.safetensors");
  if (!entries.ok()) {
    CHECK(entries.status().message().size() < 4096);
    return;
  }
  uint64_t covered = entries->empty() ? file.size() : entries->front().begin;
  for (const SafetensorsEntry& entry : *entries) {
    CHECK(entry.begin == covered && entry.begin <= entry.end && entry.end <= file.size());
    uint64_t bytes = brigade::runtime::safetensors_dtype_bytes(entry.dtype);
    for (int64_t extent : entry.shape) bytes *= static_cast<uint64_t>(extent);
    CHECK(bytes == entry.end - entry.begin);
    if (bytes > 0) sink = static_cast<uint8_t>(file[entry.begin] ^ file[entry.end - 1]);
    covered = entry.end;
  }
  CHECK(covered == file.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  check_file(input);
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(uint64_t{size} >> (8 * i));
  check_file(length + input + std::string(16, 'd'));
  return 0;
}
