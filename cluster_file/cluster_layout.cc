#include "cluster_file/cluster_layout.h"

#include <arpa/inet.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/core/check.h"

namespace brigade::cluster_file {
namespace {

const v1::Host& coordinator_host(const v1::ClusterFile& file) {
  const v1::Host* host = find_host(file, file.coordinator().host());
  CHECK(host != nullptr);
  return *host;
}

}  // namespace

std::vector<WorkerProcess> expanded_workers(const v1::ClusterFile& file) {
  std::vector<WorkerProcess> processes;
  for (int role = 0; role < file.workers_size(); ++role) {
    const v1::WorkerRole& worker = file.workers(role);
    for (int64_t i = 0; i < worker.count(); ++i) {
      WorkerProcess process;
      process.name = worker.count() > 1 ? absl::StrCat(worker.name(), "-", i) : worker.name();
      process.host = worker.host();
      process.device = absl::StrReplaceAll(worker.device(), {{"{index}", absl::StrCat(i)}});
      process.threads = worker.threads();
      process.memory_bytes = worker.memory_bytes();
      process.data_plane = worker.data_plane();
      process.role = role;
      processes.push_back(std::move(process));
    }
  }
  return processes;
}

bool has_joiners(const v1::ClusterFile& file) {
  return !file.workers().empty() || !file.drafts().empty();
}

std::set<std::string> joining_hosts(const v1::ClusterFile& file) {
  std::set<std::string> hosts;
  for (const v1::WorkerRole& worker : file.workers()) hosts.insert(worker.host());
  for (const v1::DraftRole& draft : file.drafts()) hosts.insert(draft.host());
  return hosts;
}

const v1::Host* find_host(const v1::ClusterFile& file, const std::string& name) {
  for (const v1::Host& host : file.hosts()) {
    if (host.name() == name) return &host;
  }
  return nullptr;
}

bool is_loopback_address(const std::string& address) {
  in_addr v4 = {};
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6 = {};
  if (inet_pton(AF_INET6, address.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return address == "localhost";
}

bool is_wildcard_address(const std::string& address) {
  in_addr v4 = {};
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return v4.s_addr == 0;
  in6_addr v6 = {};
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

std::string with_port(const std::string& address, int64_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return absl::StrCat(v6 ? "[" : "", address, v6 ? "]" : "", ":", port);
}

std::string control_address(const v1::ClusterFile& file) {
  return with_port(coordinator_host(file).address(), file.coordinator().control_port());
}

std::string api_address(const v1::ClusterFile& file) {
  return with_port(coordinator_host(file).address(), file.coordinator().port());
}

absl::Duration to_duration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

}  // namespace brigade::cluster_file
