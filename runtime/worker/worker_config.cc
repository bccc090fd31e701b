#include "runtime/worker/worker_config.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "runtime/device/data_plane_choice.h"
#include "runtime/joining/worker_flags.h"
#include "runtime/worker/cluster_file_settings.h"

namespace brigade::runtime::worker {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  brigade-expert-worker --join 127.0.0.1:50052 --model models/demo/target\n"
    "  brigade-expert-worker --cluster cluster.yaml --name w0\n"
    "  brigade-expert-worker --join 10.0.0.1:50052 --model m --name w1 --ca ca.pem \\\n"
    "      --token-file worker.token --trusted-network --data-interface eth0 --memory 20G\n\n"
    "It reads only the experts that the coordinator gives to it. A coordinator that is lost is "
    "dialled\n"
    "again; packed experts are kept meanwhile. SIGTERM or SIGINT: it serves until the coordinator "
    "has\n"
    "moved its experts, within --grace; a second one stops at once.\n"
    "Exit codes: 0 left in order, 1 no coordinator for --rejoin-timeout (or lost, with\n"
    "--on-lost-coordinator exit), 2 bad usage, settings or model, or refused by the coordinator.";

constexpr CommandLine kCommandLine = {"brigade-expert-worker", "runs experts for a coordinator.",
                                      kFooter};

void add_flags(CLI::App& app, WorkerConfig* config) {
  CLI::Option_group* joining = app.add_option_group("Joining");
  add_joining_flags(
      joining, "This worker's name: over restarts it keeps its rank; default: host and process",
      "File with the workers' token", config);
  joining->add_flag("--trusted-network", config->trusted_network,
                    "Activations may cross the network: authenticated, checksummed, not encrypted");
  joining->add_option("--data-interface", config->data_interface,
                      "Network device of the data plane, such as eth0; default: loopback for a "
                      "coordinator on this host, else any");
  joining
      ->add_option("--on-lost-coordinator", config->on_lost_coordinator,
                   "wait: dial again; exit: leave with 1")
      ->check(CLI::IsMember({"wait", "exit"}))
      ->capture_default_str();
  CLI::Option_group* running = app.add_option_group("Running");
  add_running_flags(running, "Folder with config.json and *.safetensors", config);
  running->add_option("--data-plane", config->data_plane, kDataPlaneHelp)->capture_default_str();
  add_size(running, "--memory", &config->memory_bytes,
           "For packed experts, such as 512M or 20G; default: no limit", "");
  running
      ->add_option("--wire-dtype", config->wire_dtype,
                   "f32 or bf16, of expert answers; as the coordinator's")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  running
      ->add_option("--kv-dtype", config->kv_dtype,
                   "f32, bf16 or f16, of the coordinator's KV cache; part of the numerics")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  add_seconds(running, "--grace", &config->grace, CLI::NonNegativeNumber,
              "From SIGTERM to leaving anyhow");
}

absl::Status check_network(const WorkerConfig& config, bool loopback) {
  if (loopback || config.trusted_network) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--join ", config.dial.address,
      " is not a loopback address, and activations travel unencrypted: if nobody else is on "
      "that network say --trusted-network"));
}

}  // namespace

ParsedWorkerFlags parse_worker_flags(int argc, char** argv) {
  ParsedWorkerFlags parsed;
  parsed.exit_code = parse_over_cluster_file<WorkerConfig>(kCommandLine, argc, argv, &add_flags,
                                                           &apply_cluster_file, &parsed.config);
  return parsed;
}

absl::Status check(WorkerConfig* config) {
  ASSIGN_OR_RETURN(const bool loopback, check_worker("the same as the coordinator's", config));
  if (config->data_interface.empty() && loopback) config->data_interface = "lo";
  return check_network(*config, loopback);
}

std::string describe(const WorkerConfig& config) {
  std::string text = describe_worker(config);
  const auto line = [&text](const char* key, const auto& value) {
    absl::StrAppend(&text, "  ", key, " ", value, "\n");
  };
  line("memory", config.memory_bytes == 0 ? "no limit" : absl::StrCat(config.memory_bytes));
  line("wire-dtype", config.wire_dtype);
  line("kv-dtype", config.kv_dtype);
  line("data-plane", config.data_plane);
  line("data-interface", config.data_interface.empty() ? "any" : config.data_interface);
  line("on-lost-coordinator", config.on_lost_coordinator);
  line("grace", absl::FormatDuration(config.grace));
  return text;
}

kernels::DType dtype_of(const std::string& name) {
  if (name == "bf16") return kernels::DType::kBF16;
  return name == "f16" ? kernels::DType::kF16 : kernels::DType::kF32;
}

}  // namespace brigade::runtime::worker
