#include "runtime/model/model_fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/status.h"
#include "runtime/files/mapped_file.h"

namespace brigade::runtime {
namespace {

std::string file_name(const SafetensorsFile& file) {
  return file.path().substr(file.path().rfind('/') + 1);
}

// One line a tensor and a file. No name holds a newline unescaped: lengths stand before names.
std::string describe(const Checkpoint& checkpoint) {
  std::string text;
  std::map<std::string, uint64_t> files;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const SafetensorsEntry& entry = *tensor.entry;
    const std::string file = file_name(*tensor.file);
    files[file] = tensor.file->bytes();
    absl::StrAppend(&text, name.size(), " ", name, " ", entry.dtype, " [",
                    absl::StrJoin(entry.shape, ","), "] ", file, " ", entry.begin, " ", entry.end,
                    "\n");
  }
  for (const auto& [file, bytes] : files) absl::StrAppend(&text, file, " ", bytes, "\n");
  return text;
}

void append_samples(const Checkpoint& checkpoint, std::string* text) {
  const size_t step = (checkpoint.tensors().size() + kSampledTensors - 1) / kSampledTensors;
  size_t number = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (number++ % step != 0) continue;
    const size_t bytes = std::min<size_t>(tensor.bytes(), kSampleBytes);
    const auto* middle = static_cast<const char*>(tensor.data()) + (tensor.bytes() - bytes) / 2;
    text->append(middle, bytes);
  }
}

}  // namespace

absl::StatusOr<std::string> model_fingerprint(const Checkpoint& checkpoint) {
  ASSIGN_OR_RETURN(const MappedFile config,
                   MappedFile::open(absl::StrCat(checkpoint.folder(), "/config.json")));
  std::string tensors = describe(checkpoint);
  append_samples(checkpoint, &tensors);
  const uint64_t config_hash = XXH3_64bits(config.data(), config.bytes());
  const XXH128_hash_t hash = XXH3_128bits_withSeed(tensors.data(), tensors.size(), config_hash);
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16),
                      absl::Hex(hash.low64, absl::kZeroPad16));
}

}  // namespace brigade::runtime
