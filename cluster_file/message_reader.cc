#include "cluster_file/message_reader.h"

#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "brigade/v1/cluster_file.pb.h"
#include "cluster_file/duration_and_size.h"
#include "cluster_file/field_rules.h"
#include "cluster_file/near_miss.h"
#include "google/protobuf/duration.pb.h"
#include "kernels/core/check.h"

namespace brigade::cluster_file {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

bool is_duration(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field.message_type() == google::protobuf::Duration::descriptor();
}

const char* kind_name(YamlNode::Kind kind) {
  switch (kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return "a single value";
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map of keys";
  }
  return "";
}

std::string join(const std::string& path, const std::string& key) {
  return path.empty() ? key : absl::StrCat(path, ".", key);
}

std::string quoted(const YamlNode& node) {
  constexpr size_t kShown = 40;
  return node.text.size() <= kShown ? absl::StrCat("\"", node.text, "\"")
                                    : absl::StrCat("\"", node.text.substr(0, kShown), "...\"");
}

// Reads one field; the problem, if there is one, is that of `path`.
class FieldReader {
 public:
  FieldReader(std::string path, const FieldDescriptor& field, Message* message, Problems* problems,
              Places* places)
      : path_(std::move(path)),
        field_(field),
        message_(message),
        reflection_(*message->GetReflection()),
        problems_(problems),
        places_(places) {}

  void read(const YamlNode& node) {
    if (field_.is_repeated()) {
      read_list(node);
    } else if (field_.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !is_duration(field_)) {
      // A section whose keys are all commented out.
      const bool required = field_.options().GetExtension(v1::required);
      if (node.kind == YamlNode::Kind::kNull && !required) return;
      if (!expect(node, YamlNode::Kind::kMap)) return;
      read_message(node, path_, reflection_.MutableMessage(message_, &field_), problems_, places_);
    } else if (expect(node, YamlNode::Kind::kScalar)) {
      read_scalar(node);
    }
  }

 private:
  void fault(const YamlNode& node, std::string sentence) {
    problems_->add(node.place, path_, std::move(sentence));
  }

  bool expect(const YamlNode& node, YamlNode::Kind kind) {
    if (node.kind == kind) return true;
    if (node.kind == YamlNode::Kind::kNull) {
      // What is not there has no place of its own.
      problems_->add(places_->of(path_), path_, "has no value");
    } else {
      fault(node, absl::StrCat("expected ", kind_name(kind), ", found ", kind_name(node.kind)));
    }
    return false;
  }

  void read_list(const YamlNode& node) {
    CHECK(field_.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE);  // the schema has no other lists
    if (node.kind == YamlNode::Kind::kNull || !expect(node, YamlNode::Kind::kList)) return;
    for (size_t i = 0; i < node.items.size(); ++i) {
      const YamlNode& item = *node.items[i];
      const std::string item_path = absl::StrCat(path_, "[", i, "]");
      places_->set(item_path, item.place);
      Message* added = reflection_.AddMessage(message_, &field_);
      if (item.kind == YamlNode::Kind::kMap) {
        read_message(item, item_path, added, problems_, places_);
      } else {
        problems_->add(item.place, item_path,
                       absl::StrCat("expected a map of keys, found ", kind_name(item.kind)));
      }
    }
  }

  void read_scalar(const YamlNode& node) {
    switch (field_.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return read_text(node);
      case FieldDescriptor::CPPTYPE_INT64:
        return read_number(node);
      case FieldDescriptor::CPPTYPE_BOOL:
        return read_bool(node);
      case FieldDescriptor::CPPTYPE_ENUM:
        return read_enum(node);
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return read_duration(node);
      default:
        CHECK(false);  // a type that the schema does not use
    }
  }

  void read_text(const YamlNode& node) {
    if (const auto wrong = text_fault(field_, node.text)) return fault(node, *wrong);
    reflection_.SetString(message_, &field_, node.text);
  }

  void read_number(const YamlNode& node) {
    int64_t value = 0;
    if (field_.options().GetExtension(v1::unit) == v1::UNIT_BYTES) {
      const absl::StatusOr<int64_t> size = parse_size(node.text);
      if (!size.ok()) return fault(node, std::string(size.status().message()));
      value = *size;
    } else {
      if (!node.plain) return fault(node, "expected a whole number, found text in quotes");
      const size_t sign = node.text.rfind('-', 0) == 0 ? 1 : 0;
      const std::string digits = node.text.substr(sign);
      if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos ||
          (digits.size() > 1 && digits[0] == '0')) {
        return fault(node, absl::StrCat("expected a whole number, found ", quoted(node)));
      }
      if (!absl::SimpleAtoi(node.text, &value)) return fault(node, "is out of any range");
    }
    if (const auto wrong = range_fault(field_, value, node.text)) return fault(node, *wrong);
    reflection_.SetInt64(message_, &field_, value);
  }

  void read_bool(const YamlNode& node) {
    if (!node.plain || (node.text != "true" && node.text != "false")) {
      return fault(node, absl::StrCat("expected true or false, found ", quoted(node)));
    }
    reflection_.SetBool(message_, &field_, node.text == "true");
  }

  void read_enum(const YamlNode& node) {
    const EnumDescriptor& type = *field_.enum_type();
    std::vector<std::string> words;
    for (int i = 0; i < type.value_count(); ++i) {
      if (type.value(i)->number() == 0) continue;  // means that the key is absent
      words.push_back(enum_word(*type.value(i)));
      if (words.back() == node.text) return reflection_.SetEnum(message_, &field_, type.value(i));
    }
    fault(node, absl::StrCat("cannot be ", quoted(node), hint(node.text, words)));
  }

  void read_duration(const YamlNode& node) {
    const absl::StatusOr<absl::Duration> duration = parse_duration(node.text);
    if (!duration.ok()) return fault(node, std::string(duration.status().message()));
    const double milliseconds = absl::ToDoubleMilliseconds(*duration);
    const double whole = milliseconds < 0 ? std::floor(milliseconds) : std::ceil(milliseconds);
    // Past 2^53 all are out of range anyway.
    const auto rounded = static_cast<int64_t>(std::min(std::max(whole, -9e15), 9e15));
    if (const auto wrong = range_fault(field_, rounded, node.text)) return fault(node, *wrong);
    auto* out =
        static_cast<google::protobuf::Duration*>(reflection_.MutableMessage(message_, &field_));
    absl::Duration rest;
    out->set_seconds(absl::IDivDuration(*duration, absl::Seconds(1), &rest));
    out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  }

  const std::string path_;
  const FieldDescriptor& field_;
  Message* const message_;
  const Reflection& reflection_;
  Problems* const problems_;
  Places* const places_;
};

std::vector<std::string> field_names(const Descriptor& type) {
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(type.field_count()));
  for (int i = 0; i < type.field_count(); ++i) names.emplace_back(type.field(i)->name());
  return names;
}

bool is_set(const Message& message, const FieldDescriptor& field) {
  return field.is_repeated() ? message.GetReflection()->FieldSize(message, &field) > 0
                             : message.GetReflection()->HasField(message, &field);
}

// True when the type or a section below it has a key with a fallback.
bool has_fallbacks(const Descriptor& type) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.options().HasExtension(v1::fallback)) return true;
    if (!field.is_repeated() && field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
        !is_duration(field) && has_fallbacks(*field.message_type())) {
      return true;
    }
  }
  return false;
}

void set_fallback(const FieldDescriptor& field, Message* message) {
  YamlNode node;
  node.kind = YamlNode::Kind::kScalar;
  node.text = field.options().GetExtension(v1::fallback);
  Problems problems("cluster_file.proto");
  Places places;
  FieldReader(std::string(field.full_name()), field, message, &problems, &places).read(node);
  CHECK(problems.empty());
}

}  // namespace

void read_message(const YamlNode& node, const std::string& path, Message* message,
                  Problems* problems, Places* places) {
  CHECK(node.kind == YamlNode::Kind::kMap);
  const Descriptor& type = *message->GetDescriptor();
  std::set<std::string> seen;
  for (const YamlNode::Entry& entry : node.entries) {
    if (entry.key->kind != YamlNode::Kind::kScalar) {
      problems->add(entry.key->place, path, "a key must be a word");
      continue;
    }
    const std::string& key = entry.key->text;
    const FieldDescriptor* field = type.FindFieldByName(key);
    if (field == nullptr) {
      problems->add(entry.key->place, join(path, key.substr(0, 64)),
                    key == "<<" ? "merging (<<) is not done here; write the keys out"
                                : absl::StrCat("unknown key", hint(key, field_names(type))));
      continue;
    }
    if (!seen.insert(key).second) {
      problems->add(
          entry.key->place, join(path, key),
          absl::StrCat("appears twice; the first is in line ", places->of(join(path, key)).line));
      continue;
    }
    places->set(join(path, key), entry.key->place);
    FieldReader(join(path, key), *field, message, problems, places).read(*entry.value);
  }
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.options().GetExtension(v1::required) && seen.count(std::string(field.name())) == 0) {
      problems->add(node.place, join(path, std::string(field.name())), "is missing");
    }
  }
}

void fill_fallbacks(Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const Descriptor& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.options().HasExtension(v1::fallback)) {
      if (!is_set(*message, field)) set_fallback(field, message);
    } else if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || is_duration(field)) {
      continue;
    } else if (field.is_repeated()) {
      for (int item = 0; item < reflection.FieldSize(*message, &field); ++item) {
        fill_fallbacks(reflection.MutableRepeatedMessage(message, &field, item));
      }
    } else if (is_set(*message, field) || has_fallbacks(*field.message_type())) {
      fill_fallbacks(reflection.MutableMessage(message, &field));
    }
  }
}

}  // namespace brigade::cluster_file
