#include "launcher/supervisor/cluster_argument.h"

#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster_file/read_cluster_file.h"
#include "kernels/core/status.h"
#include "launcher/supervisor/state_folder.h"

namespace brigade::launcher {
namespace {

bool names_file(const std::string& argument) {
  std::error_code error;
  const std::string ending = std::filesystem::path(argument).extension().string();
  return argument.find('/') != std::string::npos || ending == ".yaml" || ending == ".yml" ||
         std::filesystem::is_regular_file(argument, error);
}

absl::StatusOr<std::string> only_running_cluster() {
  const std::vector<std::string> running = running_clusters();
  if (running.empty()) {
    return absl::UnavailableError(
        absl::StrCat("no cluster is up (looked in ", default_state_root(), ")"));
  }
  if (running.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("several clusters are up, name one: ", absl::StrJoin(running, ", ")));
  }
  return running.front();
}

}  // namespace

absl::StatusOr<ClusterLocation> locate_cluster(const std::string& argument) {
  ClusterLocation cluster = {.name = argument};
  std::string configured;
  if (argument.empty()) {
    ASSIGN_OR_RETURN(cluster.name, only_running_cluster());
  } else if (names_file(argument)) {
    ASSIGN_OR_RETURN(const cluster_file::Reading reading,
                     cluster_file::read_cluster_file(argument));
    cluster.name = reading.file.name();
    configured = reading.file.launch().state_folder();
  }
  ASSIGN_OR_RETURN(cluster.folder, state_folder_path(cluster.name, configured));
  return cluster;
}

absl::Status require_supervisor(const ClusterLocation& cluster) {
  if (has_supervisor(cluster.folder)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cluster ", cluster.name, " is not up (looked in ", cluster.folder, ")"));
}

}  // namespace brigade::launcher
