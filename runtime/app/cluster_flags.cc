#include "runtime/app/cluster_flags.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "runtime/device/data_plane_choice.h"
#include "runtime/joining/worker_flags.h"

namespace brigade::runtime {
namespace {

constexpr int kMaxWorkers = 1024;
constexpr int kMaxMicrobatches = 8;

absl::Status out_of_range(const char* flag, int value, int low, int high) {
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is ", value, ", must be from ", low, " to ", high));
}

}  // namespace

void add_cluster_flags(CLI::App& app, ClusterConfig* config) {
  CLI::Option_group* group = app.add_option_group("Expert and draft workers");
  group
      ->add_option("--workers", config->workers,
                   "Workers to wait for; 0: this process holds all experts")
      ->capture_default_str();
  group->add_flag("--drafts", config->drafts, "Draft workers may join at the control port");
  group
      ->add_option("--control-listen", config->control_listen,
                   "host:port where workers join; port 0: any free one")
      ->capture_default_str();
  group->add_option("--control-port-file", config->control_port_file,
                    "Write the control port here once it is open");
  group->add_option("--worker-token-file", config->worker_token_file,
                    "File with the token workers must send");
  group->add_flag("--trusted-network", config->trusted_network,
                  "Activations may cross the network: authenticated, checksummed, not encrypted");
  group->add_option("--data-plane", config->data_plane, kDataPlaneHelp)->capture_default_str();
  group->add_option("--data-interface", config->data_interface,
                    "Network device of the data plane, such as eth0; default: loopback, or any "
                    "with --trusted-network");
  group
      ->add_option("--microbatches", config->microbatches,
                   "Steps in flight; 0: two with workers, one without")
      ->capture_default_str();
  group
      ->add_option("--wire-dtype", config->wire_dtype,
                   "f32 or bf16, of expert answers; part of the numerics")
      ->capture_default_str();
  add_seconds(group, "--join-deadline", &config->join_deadline, CLI::PositiveNumber,
              "Then start with the workers that are there");
  add_seconds(group, "--heartbeat", &config->heartbeat, CLI::PositiveNumber,
              "Between two heartbeats, both ways");
  add_seconds(group, "--lost-after", &config->lost_after, CLI::PositiveNumber,
              "Silence that means a worker is lost");
  add_seconds(group, "--reply-deadline", &config->reply_deadline, CLI::PositiveNumber,
              "A worker that owes answers for longer is lost");
}

absl::Status check(ClusterConfig* config) {
  if (config->workers < 0 || config->workers > kMaxWorkers) {
    return out_of_range("--workers", config->workers, 0, kMaxWorkers);
  }
  if (config->microbatches == 0) config->microbatches = config->workers > 0 ? 2 : 1;
  if (config->microbatches < 1 || config->microbatches > kMaxMicrobatches) {
    return out_of_range("--microbatches", config->microbatches, 1, kMaxMicrobatches);
  }
  if (config->wire_dtype != "f32" && config->wire_dtype != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("--wire-dtype ", config->wire_dtype, ": known are f32, bf16"));
  }
  if (config->heartbeat < absl::Milliseconds(1)) {
    return absl::InvalidArgumentError("--heartbeat must be at least 0.001 seconds");
  }
  if (config->lost_after < 2 * config->heartbeat) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--lost-after ", absl::FormatDuration(config->lost_after), " must be at least twice ",
        "--heartbeat ", absl::FormatDuration(config->heartbeat)));
  }
  if (config->reply_deadline < absl::Milliseconds(10)) {
    return absl::InvalidArgumentError("--reply-deadline must be at least 0.01 seconds");
  }
  return absl::OkStatus();
}

std::string describe(const ClusterConfig& config) {
  std::string text;
  const auto line = [&text](const char* key, const auto& value) {
    absl::StrAppend(&text, "  ", key, " ", value, "\n");
  };
  line("workers", config.workers);
  line("microbatches", config.microbatches);
  line("wire-dtype", config.wire_dtype);
  line("drafts", config.drafts ? "may join" : "off");
  if (config.workers > 0 || config.drafts) line("control-listen", config.control_listen);
  if (config.workers == 0) return text;
  line("worker-token", config.worker_token_file.empty() ? "none" : "required");
  line("data-plane", config.data_plane);
  line("data-network", config.trusted_network ? "trusted network" : "loopback");
  line("data-interface", config.data_interface.empty() ? "default" : config.data_interface);
  line("join-deadline", absl::FormatDuration(config.join_deadline));
  line("heartbeat", absl::FormatDuration(config.heartbeat));
  line("lost-after", absl::FormatDuration(config.lost_after));
  line("reply-deadline", absl::FormatDuration(config.reply_deadline));
  return text;
}

}  // namespace brigade::runtime
