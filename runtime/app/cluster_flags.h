// The coordinator's settings for expert and draft workers: how many, where they join, how long
// anything may take. Data and its flags; read before any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace CLI {
class App;
}

namespace brigade::runtime {

struct ClusterConfig {
  int workers = 0;      // expected; 0: the coordinator holds all experts
  bool drafts = false;  // draft workers may join; opens the control port by itself
  std::string control_listen = "127.0.0.1:50052";  // port 0: any free one
  std::string control_port_file;
  std::string worker_token_file;  // workers must send this token; it is not the clients'
  // The data plane is authenticated and checksummed, not encrypted: addresses of other hosts need
  // this word.
  bool trusted_network = false;
  std::string data_plane = "auto";  // see runtime/device/data_plane_choice.h
  std::string data_interface;       // network device of the data plane; empty: loopback, or any
  int microbatches = 0;             // 0: two with workers, one without
  std::string wire_dtype = "f32";   // of expert answers; part of the numerics
  absl::Duration join_deadline = absl::Seconds(60);    // then it starts with whoever is there
  absl::Duration heartbeat = absl::Milliseconds(200);  // between two, both ways
  absl::Duration lost_after = absl::Seconds(2);        // silence of the other side
  absl::Duration reply_deadline = absl::Seconds(10);   // a worker that owes answers longer is lost
};

void add_cluster_flags(CLI::App& app, ClusterConfig* config);

// INVALID_ARGUMENT names the flag. Fills in the number of microbatches.
absl::Status check(ClusterConfig* config);

// One line a setting, as describe(CoordinatorConfig).
std::string describe(const ClusterConfig& config);

}  // namespace brigade::runtime
