#include "cluster_file/defaults.h"

#include <string>

#include "cluster_file/cluster_layout.h"
#include "cluster_file/message_reader.h"

namespace brigade::cluster_file {
namespace {

std::string last_folder(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

void fill_defaults(v1::ClusterFile* file) {
  fill_fallbacks(file);
  if (file->hosts().empty()) {
    v1::Host* host = file->add_hosts();
    host->set_name("local");
    host->set_address("127.0.0.1");
  }
  const std::string first = file->hosts(0).name();
  v1::CoordinatorRole& coordinator = *file->mutable_coordinator();
  if (coordinator.host().empty()) coordinator.set_host(first);
  const v1::Host* host = find_host(*file, coordinator.host());
  if (coordinator.listen_address().empty() && host != nullptr) {
    coordinator.set_listen_address(host->address());
  }
  if (!coordinator.has_microbatches())
    coordinator.set_microbatches(file->workers().empty() ? 1 : 2);
  for (v1::WorkerRole& worker : *file->mutable_workers()) {
    if (worker.host().empty()) worker.set_host(first);
  }
  for (v1::DraftRole& draft : *file->mutable_drafts()) {
    if (draft.host().empty()) draft.set_host(first);
  }
  v1::ModelFiles& model = *file->mutable_model();
  if (model.name().empty()) model.set_name(last_folder(model.path()));
}

}  // namespace brigade::cluster_file
