// Who runs where, read from a checked cluster file: workers with counts written out, hosts by name,
// addresses to dial. Pure functions; the file has passed read_cluster_file(), so that every host
// named is there.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "brigade/v1/cluster_file.pb.h"

namespace brigade::cluster_file {

struct WorkerProcess {
  std::string name;
  std::string host;          // of the file's hosts
  std::string device;        // "cuda:3"
  int64_t threads = 0;       // 0: one a core
  int64_t memory_bytes = 0;  // 0: no limit
  std::string data_plane;    // auto, nccl, host
  int role = 0;              // index in ClusterFile.workers
};

// In the order of the file. A count above 1 makes name-0, name-1, ... and replaces {index} in the
// device.
std::vector<WorkerProcess> expanded_workers(const v1::ClusterFile& file);

// Somebody dials the control port: expert or draft workers.
bool has_joiners(const v1::ClusterFile& file);
// Their hosts' names.
std::set<std::string> joining_hosts(const v1::ClusterFile& file);

// nullptr when there is none of that name; roles name hosts that are there.
const v1::Host* find_host(const v1::ClusterFile& file, const std::string& name);

// 127.0.0.0/8, ::1 and "localhost".
bool is_loopback_address(const std::string& address);

// 0.0.0.0 and ::, which listen everywhere and cannot be dialled.
bool is_wildcard_address(const std::string& address);

// "10.0.0.1:50051", "[fd00::1]:50051".
std::string with_port(const std::string& address, int64_t port);

// Where others reach the coordinator: its host's address, not the one it listens at.
std::string control_address(const v1::ClusterFile& file);
std::string api_address(const v1::ClusterFile& file);

absl::Duration to_duration(const google::protobuf::Duration& duration);

}  // namespace brigade::cluster_file
