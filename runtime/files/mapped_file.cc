#include "runtime/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace brigade::runtime {
namespace {

absl::Status open_error(const std::string& path) {
  const int error = errno;
  if (error == ENOENT) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read: ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not wait for its other end.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return open_error(path);
  struct stat info {};
  if (::fstat(file, &info) != 0) {
    const absl::Status status = open_error(path);
    ::close(file);
    return status;
  }
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    ::close(file);
    return absl::InvalidArgumentError(
        absl::StrCat(path, info.st_size == 0 ? ": the file is empty" : ": not a regular file"));
  }
  const auto bytes = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  const absl::Status map_status = data == MAP_FAILED ? open_error(path) : absl::OkStatus();
  ::close(file);
  if (!map_status.ok()) return map_status;
  return MappedFile(static_cast<const uint8_t*>(data), bytes);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::drop_pages() const {
  if (data_ != nullptr) ::madvise(const_cast<uint8_t*>(data_), bytes_, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), bytes_);
}

}  // namespace brigade::runtime
