// One *.safetensors file: header of names, dtypes, shapes and spans, then the tensors' bytes. The
// reader trusts no number in it: each is checked against the file before it is used, and nothing
// grows with a number that the file merely claims. Immutable after open(); any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/files/mapped_file.h"

namespace brigade::runtime {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr int kMaxTensorRank = 8;

// A tensor as the header describes it, checked: end - begin == product(shape) * bytes of dtype.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;           // as the format spells it: "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;  // row-major
  uint64_t begin = 0;          // bytes from the start of the file
  uint64_t end = 0;
};

// Bytes of one element; 0 for a dtype that the format does not have.
size_t safetensors_dtype_bytes(std::string_view dtype);

// Checks `file`, the whole file, and returns its tensors in order of their place in it. The data
// must be covered without overlap or hole, as the format demands. INVALID_ARGUMENT names `name`
// (the file) and the key. Never reads past the header.
absl::StatusOr<std::vector<SafetensorsEntry>> parse_safetensors(std::string_view file,
                                                                const std::string& name);

class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return file_.bytes(); }
  void drop_pages() const { file_.drop_pages(); }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // The bytes of an entry of this file; possibly unaligned.
  const void* data(const SafetensorsEntry& entry) const { return file_.data() + entry.begin; }

 private:
  SafetensorsFile(std::string path, MappedFile file, std::vector<SafetensorsEntry> entries)
      : path_(std::move(path)), file_(std::move(file)), entries_(std::move(entries)) {}

  std::string path_;
  MappedFile file_;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace brigade::runtime
