// The coordinator's settings: one typed value, read from the command line, checked once, printed at
// start. Data; made before any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/api/door_options.h"
#include "runtime/app/cluster_flags.h"
#include "runtime/device/device_settings.h"
#include "runtime/engine/engine_config.h"

namespace brigade::runtime {

struct CoordinatorConfig {
  std::string cluster_file;  // says all of the below; flags win over it
  std::string model;         // folder of the checkpoint
  std::string name;          // shown to clients; empty: the folder's name
  DeviceSettings device;
  int threads = 0;               // 0: one a core
  int64_t kv_memory_bytes = 0;   // 0: see default_kv_memory; on a GPU a quarter of what it has left
  int kv_block_size = 16;        // positions
  std::string kv_dtype = "f32";  // part of the numerics
  int max_context = 0;           // 0: the model's
  int token_budget = 256;        // rows of one step
  int default_max_tokens = 256;
  bool prefix_cache = true;
  std::string speculation;  // "off", "auto" or a number; empty: see apply_speculation()
  EngineConfig engine;
  DoorOptions door;
  std::string metrics_listen = "127.0.0.1:0";  // empty: none
  std::string port_file, metrics_port_file;
  absl::Duration grace = absl::Seconds(30);
  ClusterConfig cluster;
  bool exit_on_stdin_eof = false;  // the end of stdin counts as SIGTERM
};

// What main does after reading the command line.
struct ParsedCommandLine {
  CoordinatorConfig config;
  int exit_code = -1;  // 0 or more: leave with it (help was printed, or the usage was wrong)
};

ParsedCommandLine parse_command_line(int argc, char** argv);

// The door where workers join: as the clients', on the control port and for the workers' token.
DoorOptions control_door(const CoordinatorConfig& config);

// INVALID_ARGUMENT names the flag. Fills in what depends on the machine (threads).
absl::Status check(CoordinatorConfig* config);

// A quarter of the memory that is free now, at most 8 GiB.
int64_t default_kv_memory();

// One line a setting.
std::string describe(const CoordinatorConfig& config);

}  // namespace brigade::runtime
