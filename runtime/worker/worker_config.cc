#include "runtime/device/device_flags.h"
#include "runtime/worker/worker_config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "cluster_file/cluster_layout.h"
#include "cluster_file/duration_and_size.h"
#include "kernels/core/build_version.h"
#include "kernels/core/status.h"
#include "runtime/worker/cluster_file_settings.h"

namespace brigade::runtime::worker {
namespace {

constexpr int kUsageError = 2;
constexpr int kMaxThreads = 1024;

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

void add_seconds(CLI::Option_group* group, const char* flag, absl::Duration* value,
                 const CLI::Validator& valid, const char* help) {
  group
      ->add_option_function<double>(
          flag, [value](double seconds) { *value = absl::Seconds(seconds); }, help)
      ->check(valid)
      ->type_name("SECONDS")
      ->default_str(absl::StrCat(absl::ToDoubleSeconds(*value)));
}

void add_joining_flags(CLI::App& app, WorkerConfig* config) {
  CLI::Option_group* group = app.add_option_group("Joining");
  group->add_option("--cluster", config->cluster_file,
                    "Cluster file with all settings; other flags win over it");
  group->add_option(
      "--name", config->name,
      "This worker's name: over restarts it keeps its rank; default: host and process");
  group->add_option("--join", config->dial.address, "HOST:PORT of the coordinator's control port");
  group->add_option("--ca", config->dial.ca,
                    "PEM file: the coordinator's certificate must be signed by it");
  group->add_option("--tls-cert", config->dial.tls_cert, "PEM file: certificate to show");
  group->add_option("--tls-key", config->dial.tls_key, "PEM file: its private key");
  group->add_option("--server-name", config->dial.server_name,
                    "Name in the coordinator's certificate; default: the host that is dialled");
  group->add_option("--token-file", config->dial.token_file, "File with the workers' token");
  group->add_flag("--insecure", config->insecure,
                  "Dial another host without --ca and --token-file");
  group->add_flag("--trusted-network", config->trusted_network,
                  "Activations may cross the network: authenticated, checksummed, not encrypted");
  group->add_option("--data-interface", config->data_interface,
                    "Network device of the data plane, such as eth0; default: loopback for a "
                    "coordinator on this host, else any");
  add_seconds(group, "--rejoin-timeout", &config->rejoin_timeout, CLI::PositiveNumber,
              "Without a coordinator for so long it exits with 1");
  group
      ->add_option("--on-lost-coordinator", config->on_lost_coordinator,
                   "wait: dial again; exit: leave with 1")
      ->check(CLI::IsMember({"wait", "exit"}))
      ->capture_default_str();
}

void add_running_flags(CLI::App& app, WorkerConfig* config) {
  CLI::Option_group* group = app.add_option_group("Running");
  group->add_option("--model", config->model, "Folder with config.json and *.safetensors");
  add_device_flags(group, &config->device);
  group->add_option("--threads", config->threads, "Compute threads; 0: one a core")
      ->capture_default_str();
  group
      ->add_option_function<std::string>(
          "--memory",
          [config](const std::string& text) {
            const absl::StatusOr<int64_t> bytes = cluster_file::parse_size(text);
            if (!bytes.ok())
              throw CLI::ValidationError("--memory", std::string(bytes.status().message()));
            config->memory_bytes = *bytes;
          },
          "For packed experts, such as 512M or 20G; default: no limit")
      ->type_name("SIZE");
  group
      ->add_option("--wire-dtype", config->wire_dtype,
                   "f32 or bf16, of expert answers; as the coordinator's")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  group
      ->add_option("--kv-dtype", config->kv_dtype,
                   "f32, bf16 or f16, of the coordinator's KV cache; part of the numerics")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  add_seconds(group, "--grace", &config->grace, CLI::NonNegativeNumber,
              "From SIGTERM to leaving anyhow");
  group->add_flag("--exit-on-stdin-eof", config->exit_on_stdin_eof,
                  "The end of stdin counts as SIGTERM");
}

// Flags that were given replace values in `config`. -1, or the exit code.
int parse_into(int argc, char** argv, WorkerConfig* config) {
  CLI::App app("brigade-expert-worker: runs experts for a coordinator.");
  app.set_version_flag("--version", absl::StrCat("brigade-expert-worker ", kBuildVersion));
  app.footer(kFooter);
  add_joining_flags(app, config);
  add_running_flags(app, config);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked_for = error.get_exit_code() == 0;
    app.exit(error);
    return asked_for ? 0 : kUsageError;
  }
  return -1;
}

absl::Status check_network(const WorkerConfig& config, bool loopback) {
  if (loopback || config.trusted_network) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--join ", config.dial.address,
      " is not a loopback address, and activations travel unencrypted: if nobody else is on "
      "that network say --trusted-network"));
}

std::string default_name() {
  char host[256] = "worker";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, "-", getpid());
}

}  // namespace

ParsedWorkerFlags parse_worker_flags(int argc, char** argv) {
  ParsedWorkerFlags result;
  result.exit_code = parse_into(argc, argv, &result.config);
  if (result.exit_code >= 0 || result.config.cluster_file.empty()) return result;
  WorkerConfig config;
  config.cluster_file = result.config.cluster_file;
  config.name = result.config.name;
  if (const absl::Status status = apply_cluster_file(&config); !status.ok()) {
    std::fprintf(stderr, "brigade-expert-worker: %s\n", std::string(status.message()).c_str());
    result.exit_code = kUsageError;
    return result;
  }
  result.exit_code = parse_into(argc, argv, &config);
  result.config = std::move(config);
  return result;
}

absl::Status check(WorkerConfig* config) {
  if (config->dial.address.empty())
    return absl::InvalidArgumentError("--join HOST:PORT or --cluster FILE is needed");
  ASSIGN_OR_RETURN(const std::string host, host_of(config->dial.address));
  const bool loopback = cluster_file::is_loopback_address(host);
  RETURN_IF_ERROR(check_trust(config->dial, loopback, config->insecure));
  RETURN_IF_ERROR(check_network(*config, loopback));
  RETURN_IF_ERROR(check_files(config->dial));
  if (config->data_interface.empty() && loopback) config->data_interface = "lo";
  struct stat info = {};
  if (config->model.empty())
    return absl::InvalidArgumentError("--model FOLDER is needed, the same as the coordinator's");
  if (stat(config->model.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat("--model ", config->model, " is no folder"));
  if (config->threads == 0)
    config->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (config->threads < 1 || config->threads > kMaxThreads)
    return absl::InvalidArgumentError(
        absl::StrCat("--threads is ", config->threads, ", must be from 1 to ", kMaxThreads));
  RETURN_IF_ERROR(runtime::check(config->device));
  if (config->name.empty()) config->name = default_name();
  return absl::OkStatus();
}

std::string describe(const WorkerConfig& config) {
  std::string text;
  const auto line = [&text](const char* key, const auto& value) {
    absl::StrAppend(&text, "  ", key, " ", value, "\n");
  };
  line("name", config.name);
  line("join", config.dial.address);
  line("model", config.model);
  line("device", runtime::describe(config.device));
  line("threads", config.threads);
  line("memory", config.memory_bytes == 0 ? "no limit" : absl::StrCat(config.memory_bytes));
  line("wire-dtype", config.wire_dtype);
  line("kv-dtype", config.kv_dtype);
  line("tls", config.dial.ca.empty() ? "off" : "on");
  line("token", config.dial.token_file.empty() ? "none" : "sent");
  line("data-interface", config.data_interface.empty() ? "any" : config.data_interface);
  line("rejoin-timeout", absl::FormatDuration(config.rejoin_timeout));
  line("on-lost-coordinator", config.on_lost_coordinator);
  line("grace", absl::FormatDuration(config.grace));
  return text;
}

kernels::DType dtype_of(const std::string& name) {
  if (name == "bf16") return kernels::DType::kBF16;
  return name == "f16" ? kernels::DType::kF16 : kernels::DType::kF32;
}

}  // namespace brigade::runtime::worker
