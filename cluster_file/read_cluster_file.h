// The entry of this room: a cluster file, read, filled and checked. Pure functions of the text and
// of what `surroundings` answers; nothing throws.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "brigade/v1/cluster_file.pb.h"
#include "cluster_file/surroundings.h"

namespace brigade::cluster_file {

struct Reading {
  v1::ClusterFile file;            // defaults filled, paths absolute
  std::vector<std::string> notes;  // worth a look, no faults
};

// Reads and checks `path`. INVALID_ARGUMENT: up to 20 lines FILE:LINE:COL: key: sentence.
// NOT_FOUND: the file cannot be read.
absl::StatusOr<Reading> read_cluster_file(const std::string& path,
                                          const Surroundings* surroundings = &this_machine());

// The same for text that stands in `path`, whose folder relative paths start at.
absl::StatusOr<Reading> parse_cluster_file(const std::string& text, const std::string& path,
                                           const Surroundings* surroundings);

// The file as YAML, every key that has a value; reading it again gives an equal message.
std::string to_yaml(const v1::ClusterFile& file);

}  // namespace brigade::cluster_file
