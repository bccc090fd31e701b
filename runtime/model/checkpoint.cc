#include "runtime/model/checkpoint.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/status.h"
#include "runtime/files/json.h"

namespace brigade::runtime {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kMaxNamesInSentence = 20;

bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

std::vector<std::string> safetensors_files(const std::string& folder) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = ::readdir(dir)) {
    if (absl::EndsWith(entry->d_name, ".safetensors")) names.emplace_back(entry->d_name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

std::string join_some(const std::vector<std::string>& names) {
  if (names.empty()) return "none";
  if (names.size() <= kMaxNamesInSentence) return absl::StrJoin(names, ", ");
  const std::vector<std::string> some(names.begin(), names.begin() + kMaxNamesInSentence);
  return absl::StrCat(absl::StrJoin(some, ", "), " and ", names.size() - some.size(), " more");
}

bool is_plain_file_name(const std::string& name) {
  return name.find('/') == std::string::npos && name.find('\0') == std::string::npos &&
         name.size() <= 255 && absl::EndsWith(name, ".safetensors");
}

absl::StatusOr<std::map<std::string, std::string>> read_weight_map(const std::string& path) {
  ASSIGN_OR_RETURN(const nlohmann::json index, read_json_file(path));
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (found == index.end() || !found->is_object() || found->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": weight_map is missing, empty or not an object"));
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": weight_map[\"", tensor.substr(0, 200),
                       "\"] is not the plain name of a .safetensors file"));
    }
    weight_map.emplace(tensor, file.get<std::string>());
  }
  return weight_map;
}

// What is wrong with a shard before anything of it is used; "" when it opens.
std::string shard_problem(const std::string& folder, const std::string& shard) {
  const std::string path = absl::StrCat(folder, "/", shard);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return absl::StrCat(shard, " is missing");
  if (!S_ISREG(info.st_mode)) return absl::StrCat(shard, " is not a regular file");
  if (info.st_size == 0) return absl::StrCat(shard, " is empty");
  const absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::open(path);
  return opened.ok() ? "" : std::string(opened.status().message());
}

}  // namespace

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

uint64_t Checkpoint::total_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += tensor.bytes();
  return bytes;
}

void Checkpoint::drop_pages() const {
  for (const auto& file : files_) file->drop_pages();
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& folder) {
  if (!exists(folder)) return absl::NotFoundError(absl::StrCat(folder, ": no such folder"));
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint(folder));
  const std::string index = absl::StrCat(folder, "/", kIndexFile);
  if (exists(index)) {
    ASSIGN_OR_RETURN(const WeightMap weight_map, read_weight_map(index));
    RETURN_IF_ERROR(checkpoint->open_shards(weight_map));
  } else {
    RETURN_IF_ERROR(checkpoint->open_single());
  }
  std::vector<std::string> strays;
  for (const std::string& name : safetensors_files(folder)) {
    const std::string path = absl::StrCat(folder, "/", name);
    const bool used = std::any_of(checkpoint->files_.begin(), checkpoint->files_.end(),
                                  [&](const auto& file) { return file->path() == path; });
    if (!used) strays.push_back(name);
  }
  if (!strays.empty()) {
    checkpoint->notes_.push_back(
        absl::StrCat(folder, ": not part of the checkpoint and left alone: ", join_some(strays)));
  }
  return checkpoint;
}

absl::Status Checkpoint::open_single() {
  const std::string path = absl::StrCat(folder_, "/", kSingleFile);
  if (!exists(path)) {
    return absl::NotFoundError(
        absl::StrCat(folder_, ": neither ", kIndexFile, " nor ", kSingleFile,
                     "; safetensors files present: ", join_some(safetensors_files(folder_))));
  }
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
  for (const SafetensorsEntry& entry : files_.back()->entries()) {
    tensors_.emplace(entry.name, CheckpointTensor{&entry, files_.back().get()});
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::open_shards(const WeightMap& weight_map) {
  std::set<std::string> shards;
  for (const auto& [tensor, file] : weight_map) shards.insert(file);
  std::vector<std::string> problems;
  for (const std::string& shard : shards) {
    std::string problem = shard_problem(folder_, shard);
    if (!problem.empty()) problems.push_back(std::move(problem));
  }
  if (!problems.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder_, ": ", kIndexFile, " lists ", shards.size(), " files, ",
                     problems.size(), " of them unusable: ", join_some(problems),
                     "; safetensors files present: ", join_some(safetensors_files(folder_))));
  }
  for (const std::string& shard : shards) RETURN_IF_ERROR(add_shard(shard, weight_map));
  for (const auto& [tensor, file] : weight_map) {
    if (tensors_.count(tensor) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(folder_, ": ", kIndexFile, " places tensor \"",
                                                     tensor, "\" in ", file, ", which lacks it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::add_shard(const std::string& shard, const WeightMap& weight_map) {
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(absl::StrCat(folder_, "/", shard)));
  files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
  for (const SafetensorsEntry& entry : files_.back()->entries()) {
    const auto listed = weight_map.find(entry.name);
    if (listed == weight_map.end() || listed->second != shard) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder_, "/", shard, ": holds tensor \"", entry.name, "\", which ", kIndexFile,
          listed == weight_map.end() ? " does not list" : " places in " + listed->second));
    }
    tensors_.emplace(entry.name, CheckpointTensor{&entry, files_.back().get()});
  }
  return absl::OkStatus();
}

}  // namespace brigade::runtime
