// The tensors of a model folder by name, over one or many mapped safetensors files. The index, if
// there is one, decides which files belong; every other one is left closed. Owns the mappings, so
// it must outlive all views of tensors. Immutable after open(); any thread may read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/model/safetensors.h"

namespace brigade::runtime {

struct CheckpointTensor {
  const SafetensorsEntry* entry = nullptr;
  const SafetensorsFile* file = nullptr;
  const void* data() const { return file->data(*entry); }
  uint64_t bytes() const { return entry->end - entry->begin; }
};

class Checkpoint {
 public:
  // Reads headers only. One sentence names every missing, empty or short shard and, when the index
  // is stale, what is in the folder instead.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  // Null when there is none of this name.
  const CheckpointTensor* find(std::string_view name) const;
  // Sorted by name.
  const std::map<std::string, CheckpointTensor, std::less<>>& tensors() const { return tensors_; }
  size_t num_files() const { return files_.size(); }
  uint64_t total_bytes() const;
  // Gives back the memory of all pages read so far: who has packed what it needs keeps none.
  void drop_pages() const;
  // One line each, for the log: files that were left alone.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  using WeightMap = std::map<std::string, std::string>;  // tensor -> file name
  explicit Checkpoint(std::string folder) : folder_(std::move(folder)) {}
  absl::Status open_single();
  absl::Status open_shards(const WeightMap& weight_map);
  absl::Status add_shard(const std::string& shard, const WeightMap& weight_map);

  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
  std::vector<std::string> notes_;
};

}  // namespace brigade::runtime
