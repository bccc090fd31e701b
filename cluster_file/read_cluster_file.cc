#include "cluster_file/read_cluster_file.h"

#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cluster_file/defaults.h"
#include "cluster_file/message_reader.h"
#include "cluster_file/problems.h"
#include "cluster_file/rules.h"
#include "cluster_file/yaml_tree.h"
#include "kernels/core/status.h"

namespace brigade::cluster_file {
namespace {

namespace fs = std::filesystem;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Every path of the message, those inside lists too.
void resolve_paths(const fs::path& folder, Message* message) {
  const auto& type = *message->GetDescriptor();
  const auto& reflection = *message->GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (field.is_repeated()) {
      const int size = is_message ? reflection.FieldSize(*message, &field) : 0;
      for (int j = 0; j < size; ++j) {
        resolve_paths(folder, reflection.MutableRepeatedMessage(message, &field, j));
      }
      continue;
    }
    if (!reflection.HasField(*message, &field)) continue;
    if (is_message) {
      resolve_paths(folder, reflection.MutableMessage(message, &field));
    } else if (field.options().GetExtension(v1::words) == v1::WORDS_PATH) {
      const fs::path path = reflection.GetString(*message, &field);
      std::string whole = (folder / path).lexically_normal().string();
      while (whole.size() > 1 && whole.back() == '/') whole.pop_back();
      reflection.SetString(message, &field, whole);
    }
  }
}

void check_rules(const Places& places, const Surroundings* surroundings, Problems* problems,
                 Reading* reading) {
  const RuleContext context{reading->file, places, surroundings, problems, &reading->notes};
  if (!check_names(context)) return;
  check_numbers(context);
  check_trust(context);
  check_files(context);
}

}  // namespace

absl::StatusOr<Reading> parse_cluster_file(const std::string& text, const std::string& path,
                                           const Surroundings* surroundings) {
  Problems problems(path);
  Places places;
  Reading reading;
  const std::optional<YamlTree> tree = parse_yaml(text, &problems);
  if (!tree) return problems.status();
  if (tree->root->kind != YamlNode::Kind::kMap) {
    problems.add(tree->root->place, "", "expected a map of keys, such as model: and workers:");
    return problems.status();
  }
  read_message(*tree->root, "", &reading.file, &problems, &places);
  RETURN_IF_ERROR(problems.status());
  std::error_code ignored;
  resolve_paths(fs::absolute(path, ignored).parent_path(), &reading.file);
  fill_defaults(&reading.file);
  check_rules(places, surroundings, &problems, &reading);
  RETURN_IF_ERROR(problems.status());
  return reading;
}

absl::StatusOr<Reading> read_cluster_file(const std::string& path,
                                          const Surroundings* surroundings) {
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  if (!file || fs::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot read the cluster file"));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return parse_cluster_file(text, path, surroundings);
}

}  // namespace brigade::cluster_file
