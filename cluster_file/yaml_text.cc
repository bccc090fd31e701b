#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cluster_file/cluster_layout.h"
#include "cluster_file/duration_and_size.h"
#include "cluster_file/field_rules.h"
#include "cluster_file/read_cluster_file.h"

namespace brigade::cluster_file {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// In double quotes unless every reader takes it for the same text without: no number, no time, no
// word of YAML's own.
std::string yaml_string(const std::string& text) {
  constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  constexpr char kOthers[] = "0123456789._/-";
  static const std::set<std::string> kWords = {"null", "true", "false", "yes", "no",
                                               "on",   "off",  "y",     "n"};
  const bool starts_plain =
      !text.empty() && (std::strchr(kLetters, text.front()) != nullptr || text.front() == '/');
  const auto fits = [&](char c) {
    return std::strchr(kLetters, c) != nullptr || std::strchr(kOthers, c) != nullptr;
  };
  if (starts_plain && std::all_of(text.begin(), text.end(), fits) &&
      kWords.count(absl::AsciiStrToLower(text)) == 0) {
    return text;
  }
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string scalar(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return yaml_string(reflection.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return enum_word(*reflection.GetEnum(message, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return print_duration(to_duration(
          static_cast<const google::protobuf::Duration&>(reflection.GetMessage(message, &field))));
    default: {
      const int64_t value = reflection.GetInt64(message, &field);
      return field.options().GetExtension(v1::unit) == v1::UNIT_BYTES ? print_size(value)
                                                                      : absl::StrCat(value);
    }
  }
}

bool is_section(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field.message_type() != google::protobuf::Duration::descriptor();
}

// Lines of a message's keys, each after `indent`; the first after `first` instead.
std::string lines(const Message& message, const std::string& first, const std::string& indent) {
  const auto& type = *message.GetDescriptor();
  const auto& reflection = *message.GetReflection();
  std::string text;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string lead = text.empty() ? first : indent;
    const std::string name(field.name());
    if (field.is_repeated()) {
      const int size = reflection.FieldSize(message, &field);
      if (size > 0) absl::StrAppend(&text, lead, name, ":\n");
      for (int item = 0; item < size; ++item) {
        text += lines(reflection.GetRepeatedMessage(message, &field, item), indent + "  - ",
                      indent + "    ");
      }
    } else if (!reflection.HasField(message, &field)) {
      continue;
    } else if (is_section(field)) {
      const std::string inner =
          lines(reflection.GetMessage(message, &field), indent + "  ", indent + "  ");
      if (!inner.empty()) absl::StrAppend(&text, lead, name, ":\n", inner);
    } else {
      absl::StrAppend(&text, lead, name, ": ", scalar(message, field), "\n");
    }
  }
  return text;
}

}  // namespace

std::string to_yaml(const v1::ClusterFile& file) { return lines(file, "", ""); }

}  // namespace brigade::cluster_file
