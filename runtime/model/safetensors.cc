#include "runtime/model/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/status.h"
#include "runtime/model/safetensors_header.h"

namespace brigade::runtime {
namespace {

constexpr size_t kLengthBytes = 8;

struct DtypeSize {
  std::string_view name;
  size_t bytes;
};
constexpr std::array<DtypeSize, 17> kDtypes = {{{"BOOL", 1},
                                                {"U8", 1},
                                                {"I8", 1},
                                                {"F8_E4M3", 1},
                                                {"F8_E5M2", 1},
                                                {"F8_E8M0", 1},
                                                {"I16", 2},
                                                {"U16", 2},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"I32", 4},
                                                {"U32", 4},
                                                {"F32", 4},
                                                {"I64", 8},
                                                {"U64", 8},
                                                {"F64", 8},
                                                {"C64", 8}}};

absl::Status refuse(const std::string& file, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
}

// product(shape) * element bytes, or nothing when that exceeds 64 bits.
std::optional<uint64_t> span_bytes(const HeaderEntry& entry) {
  uint64_t bytes = safetensors_dtype_bytes(entry.dtype);
  for (int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) return std::nullopt;
  }
  return bytes;
}

absl::Status check_span(const HeaderEntry& entry, uint64_t data_bytes, const std::string& file) {
  const auto [begin, end] = std::pair(entry.offsets[0], entry.offsets[1]);
  const std::string what = absl::StrCat("tensor \"", entry.name, "\": ");
  const std::string offsets = absl::StrCat("data_offsets [", begin, ", ", end, "]");
  if (begin > end) return refuse(file, absl::StrCat(what, offsets, " run backwards"));
  if (end > data_bytes) {
    return refuse(file, absl::StrCat(what, offsets, " reach past the file, which holds ",
                                     data_bytes, " bytes of data: it is cut short or damaged"));
  }
  const std::string shape = absl::StrCat("[", absl::StrJoin(entry.shape, ", "), "]");
  const std::optional<uint64_t> bytes = span_bytes(entry);
  if (!bytes) return refuse(file, absl::StrCat(what, "shape ", shape, " overflows"));
  if (*bytes != end - begin) {
    return refuse(file, absl::StrCat(what, "shape ", shape, " of ", entry.dtype, " takes ", *bytes,
                                     " bytes but data_offsets span ", end - begin));
  }
  return absl::OkStatus();
}

// Sorted spans must meet exactly, from the first byte of the data to its last.
absl::Status check_cover(const std::vector<HeaderEntry>& sorted, uint64_t data_bytes,
                         const std::string& file) {
  uint64_t covered = 0;
  const HeaderEntry* previous = nullptr;
  for (const HeaderEntry& entry : sorted) {
    if (entry.offsets[0] < covered) {
      return refuse(file, absl::StrCat("tensors \"", previous->name, "\" and \"", entry.name,
                                       "\" overlap at data byte ", entry.offsets[0]));
    }
    if (entry.offsets[0] > covered) {
      return refuse(
          file, absl::StrCat("data bytes ", covered, " to ", entry.offsets[0], ", before tensor \"",
                             entry.name, "\", belong to no tensor"));
    }
    covered = entry.offsets[1];
    previous = &entry;
  }
  if (covered != data_bytes) {
    return refuse(file, absl::StrCat("the last ", data_bytes - covered,
                                     " bytes of the file belong to no tensor"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> header_length(std::string_view file, const std::string& name) {
  if (file.size() < kLengthBytes) {
    return refuse(name, absl::StrCat("only ", file.size(), " bytes, too short for a header"));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= uint64_t{static_cast<uint8_t>(file[i])} << (8 * i);
  }
  if (length > file.size() - kLengthBytes) {
    return refuse(name, absl::StrCat("header length ", length, " exceeds the file's ", file.size(),
                                     " bytes: it is cut short or damaged"));
  }
  if (length > kMaxSafetensorsHeaderBytes) {
    return refuse(name, absl::StrCat("header length ", length, " exceeds the limit of ",
                                     kMaxSafetensorsHeaderBytes));
  }
  if (length == 0 || file[kLengthBytes] != '{') return refuse(name, "header does not start with {");
  return length;
}

}  // namespace

size_t safetensors_dtype_bytes(std::string_view dtype) {
  for (const DtypeSize& known : kDtypes) {
    if (known.name == dtype) return known.bytes;
  }
  return 0;
}

absl::StatusOr<std::vector<SafetensorsEntry>> parse_safetensors(std::string_view file,
                                                                const std::string& name) {
  ASSIGN_OR_RETURN(const uint64_t length, header_length(file, name));
  ASSIGN_OR_RETURN(std::vector<HeaderEntry> header,
                   parse_safetensors_header(file.substr(kLengthBytes, length), name));
  const uint64_t data_start = kLengthBytes + length;
  const uint64_t data_bytes = file.size() - data_start;
  for (const HeaderEntry& entry : header) RETURN_IF_ERROR(check_span(entry, data_bytes, name));
  std::sort(header.begin(), header.end(),
            [](const HeaderEntry& a, const HeaderEntry& b) { return a.offsets < b.offsets; });
  RETURN_IF_ERROR(check_cover(header, data_bytes, name));
  std::vector<SafetensorsEntry> entries;
  entries.reserve(header.size());
  for (HeaderEntry& entry : header) {
    entries.push_back({std::move(entry.name), std::move(entry.dtype), std::move(entry.shape),
                       data_start + entry.offsets[0], data_start + entry.offsets[1]});
  }
  return entries;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.bytes());
  ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries, parse_safetensors(bytes, path));
  return SafetensorsFile(path, std::move(file), std::move(entries));
}

}  // namespace brigade::runtime
