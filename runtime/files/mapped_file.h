// A file mapped for reading, so that a checkpoint costs address space and only the pages that are
// read. Owned by whoever opened it; views into it end with it. Reading is safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace brigade::runtime {

class MappedFile {
 public:
  // NOT_FOUND: no such file. INVALID_ARGUMENT: not a regular file, or empty. The path is named.
  static absl::StatusOr<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Gives back the memory of pages that were read; the next read brings them in again. Any thread.
  void drop_pages() const;

 private:
  MappedFile(const uint8_t* data, size_t bytes) : data_(data), bytes_(bytes) {}

  const uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace brigade::runtime
