#include "cluster_file/field_rules.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "brigade/v1/cluster_file.pb.h"
#include "cluster_file/duration_and_size.h"
#include "cluster_file/near_miss.h"

namespace brigade::cluster_file {
namespace {

using google::protobuf::FieldDescriptor;

constexpr size_t kMaxTextBytes = 4096;
constexpr size_t kMaxIdentifierBytes = 64;
constexpr size_t kMaxAddressBytes = 253;
constexpr int kMaxCudaDevice = 63;

bool is_letter_or_digit(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); }

std::optional<std::string> identifier_fault(const std::string& text) {
  const bool fine = text.size() <= kMaxIdentifierBytes && is_letter_or_digit(text.front()) &&
                    std::all_of(text.begin(), text.end(), [](char c) {
                      return is_letter_or_digit(c) || c == '.' || c == '-' || c == '_';
                    });
  if (fine) return std::nullopt;
  return absl::StrCat(
      "\"", text.substr(0, kMaxIdentifierBytes), "\" is no name; use letters, digits, ",
      "'.', '-' and '_', the first a letter or digit, at most ", kMaxIdentifierBytes);
}

std::optional<std::string> address_fault(const std::string& text) {
  const auto colons = std::count(text.begin(), text.end(), ':');
  if (colons == 1) {
    return absl::StrCat("\"", text, "\": the address goes without a port");
  }
  const bool fine = text.size() <= kMaxAddressBytes && text.front() != '-' &&
                    std::all_of(text.begin(), text.end(), [](char c) {
                      return is_letter_or_digit(c) || c == '.' || c == '-' || c == ':' || c == '_';
                    });
  if (fine) return std::nullopt;
  return absl::StrCat("\"", text.substr(0, kMaxAddressBytes),
                      "\" is no host name, IPv4 or IPv6 address (without brackets)");
}

std::optional<std::string> device_fault(const std::string& text) {
  const std::vector<std::string> known = {"cpu", "cpu_async", "cuda:0"};
  if (text == "cpu" || text == "cpu_async" || is_cuda_device(text)) return std::nullopt;
  return absl::StrCat("there is no device \"", text, "\"", hint(text, known));
}

std::optional<std::string> word_fault(const char* what, const std::string& text,
                                      const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), text) != known.end()) return std::nullopt;
  return absl::StrCat("there is no ", what, " \"", text, "\"", hint(text, known));
}

std::optional<std::string> path_fault(const std::string& text) {
  if (text.front() != '~') return std::nullopt;
  return absl::StrCat("\"", text, "\": ~ is not expanded here; write the folder");
}

std::string shown_bound(const FieldDescriptor& field, int64_t bound) {
  if (field.options().GetExtension(v1::unit) == v1::UNIT_BYTES) return print_size(bound);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    return print_duration(absl::Milliseconds(bound));
  }
  return absl::StrCat(bound);
}

}  // namespace

std::optional<std::string> text_fault(const FieldDescriptor& field, const std::string& text) {
  if (text.empty()) return "is empty; leave the key out instead";
  if (text.size() > kMaxTextBytes) {
    return absl::StrCat("has ", text.size(), " bytes, at most ", kMaxTextBytes, " are taken");
  }
  if (std::any_of(text.begin(), text.end(),
                  [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); })) {
    return "has a line break or another control character";
  }
  switch (field.options().GetExtension(v1::words)) {
    case v1::WORDS_WIRE_DTYPE:
      return word_fault("dtype", text, {"f32", "bf16"});
    case v1::WORDS_KV_DTYPE:
      return word_fault("dtype", text, {"f32", "bf16", "f16"});
    case v1::WORDS_GPU_MATH:
      return word_fault("maths mode", text, {"identical", "fast"});
    case v1::WORDS_DATA_PLANE:
      return word_fault("data plane", text, {"auto", "nccl", "host"});
    case v1::WORDS_SWITCH:
      return word_fault("setting", text, {"on", "off"});
    case v1::WORDS_DEVICE:
      return device_fault(text);
    case v1::WORDS_IDENTIFIER:
      return identifier_fault(text);
    case v1::WORDS_ADDRESS:
      return address_fault(text);
    case v1::WORDS_PATH:
      return path_fault(text);
    default:
      return std::nullopt;
  }
}

std::optional<std::string> range_fault(const FieldDescriptor& field, int64_t value,
                                       const std::string& shown) {
  if (!field.options().HasExtension(v1::range)) return std::nullopt;
  const v1::Range& range = field.options().GetExtension(v1::range);
  if (value >= range.min() && value <= range.max()) return std::nullopt;
  return absl::StrCat("is ", shown, ", must be from ", shown_bound(field, range.min()), " to ",
                      shown_bound(field, range.max()));
}

std::string enum_word(const google::protobuf::EnumValueDescriptor& value) {
  // DATA_PLANE_LOOPBACK of DataPlane: drop as many letters as the type has, and its underscores.
  const std::string& name = value.name();
  size_t letters = std::string(value.type()->name()).size();
  size_t begin = 0;
  for (; begin < name.size() && letters > 0; ++begin) letters -= name[begin] == '_' ? 0 : 1;
  if (begin < name.size() && name[begin] == '_') ++begin;
  return absl::AsciiStrToLower(name.substr(begin));
}

bool is_cuda_device(const std::string& device) {
  constexpr char kPrefix[] = "cuda:";
  if (device.rfind(kPrefix, 0) != 0) return false;
  const std::string index = device.substr(sizeof(kPrefix) - 1);
  int number = -1;
  return index == "{index}" || (!index.empty() && index.size() <= 2 &&
                                index.find_first_not_of("0123456789") == std::string::npos &&
                                absl::SimpleAtoi(index, &number) && number <= kMaxCudaDevice);
}

}  // namespace brigade::cluster_file
