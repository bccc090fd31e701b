#include "runtime/draft_worker/draft_worker_config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster_file/cluster_layout.h"
#include "cluster_file/duration_and_size.h"
#include "cluster_file/read_cluster_file.h"
#include "kernels/core/build_version.h"
#include "kernels/core/status.h"
#include "runtime/device/device_flags.h"

namespace brigade::runtime::draft_worker {
namespace {

constexpr int kUsageError = 2;
constexpr int kMaxThreads = 1024;
constexpr int kMaxSequences = 4096;

constexpr const char* kFooter =
    "Examples:\n"
    "  brigade-draft-worker --join 127.0.0.1:50052 --model models/demo/draft\n"
    "  brigade-draft-worker --cluster cluster.yaml --name d0\n"
    "  brigade-draft-worker --join 10.0.0.1:50052 --model m --name d0 --ca ca.pem \\\n"
    "      --token-file draft.token\n\n"
    "It drafts ahead of the coordinator, which checks every token: it can cost nobody a word. A\n"
    "coordinator that is lost is dialled again. SIGTERM or SIGINT: it leaves at once.\n"
    "Exit codes: 0 asked to stop, 1 no coordinator for --rejoin-timeout, 2 bad usage, settings or\n"
    "model, or refused by the coordinator.";

void add_joining_flags(CLI::App& app, DraftWorkerConfig* config) {
  CLI::Option_group* group = app.add_option_group("Joining");
  group->add_option("--join", config->dial.address, "HOST:PORT of the coordinator's control port");
  group->add_option("--cluster", config->cluster_file,
                    "Cluster file with all settings; other flags win over it");
  group->add_option("--name", config->name,
                    "Shown in the coordinator's status; default: host and process");
  group->add_option("--ca", config->dial.ca,
                    "PEM file: the coordinator's certificate must be signed by it");
  group->add_option("--tls-cert", config->dial.tls_cert, "PEM file: certificate to show");
  group->add_option("--tls-key", config->dial.tls_key, "PEM file: its private key");
  group->add_option("--server-name", config->dial.server_name,
                    "Name in the coordinator's certificate; default: the host that is dialled");
  group->add_option("--token-file", config->dial.token_file, "File with the draft workers' token");
  group->add_flag("--insecure", config->insecure,
                  "Dial another host without --ca and --token-file");
  group
      ->add_option_function<double>(
          "--rejoin-timeout",
          [config](double seconds) { config->rejoin_timeout = absl::Seconds(seconds); },
          "Without a coordinator for so long it exits with 1")
      ->check(CLI::PositiveNumber)
      ->type_name("SECONDS")
      ->default_str(absl::StrCat(absl::ToDoubleSeconds(config->rejoin_timeout)));
}

void add_running_flags(CLI::App& app, DraftWorkerConfig* config) {
  CLI::Option_group* group = app.add_option_group("Running");
  group->add_option("--model", config->model, "Folder of a dense model and its tokenizer.json");
  add_device_flags(group, &config->device);
  group->add_option("--threads", config->threads, "Compute threads; 0: one a core")
      ->capture_default_str();
  group->add_option("--max-sequences", config->max_sequences, "Drafted for at the same time")
      ->capture_default_str();
  group->add_option("--max-context", config->max_context,
                    "Tokens of one sequence; 0: as the model says");
  group->add_option("--token-budget", config->token_budget, "Rows of one step")
      ->capture_default_str();
  group
      ->add_option_function<std::string>(
          "--kv-memory",
          [config](const std::string& text) {
            const absl::StatusOr<int64_t> bytes = cluster_file::parse_size(text);
            if (!bytes.ok()) {
              throw CLI::ValidationError("--kv-memory", std::string(bytes.status().message()));
            }
            config->kv_memory_bytes = *bytes;
          },
          "For keys and values, such as 256M")
      ->type_name("SIZE")
      ->default_str("256M");
  group->add_flag("--exit-on-stdin-eof", config->exit_on_stdin_eof,
                  "The end of stdin counts as SIGTERM");
}

absl::Status check_range(const char* flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is ", value, ", must be from ", low, " to ", high));
}

std::string default_name() {
  char host[256] = "draft";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, "-", getpid());
}

// Flags that were given replace values in `config`. -1, or the exit code.
int parse_into(int argc, char** argv, DraftWorkerConfig* config) {
  CLI::App app("brigade-draft-worker: drafts ahead for a coordinator.");
  app.set_version_flag("--version", absl::StrCat("brigade-draft-worker ", kBuildVersion));
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

absl::StatusOr<v1::DraftRole> find_draft(const v1::ClusterFile& file,
                                         const DraftWorkerConfig& config) {
  std::vector<std::string> names;
  for (const v1::DraftRole& draft : file.drafts()) {
    if (draft.name() == config.name) return draft;
    names.push_back(draft.name());
  }
  if (config.name.empty()) {
    return absl::InvalidArgumentError("--cluster needs --name: which of its drafts this is");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--name ", config.name, ": ", config.cluster_file, " has no such draft; it has ",
                   names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

absl::Status apply_cluster_file(DraftWorkerConfig* config) {
  ASSIGN_OR_RETURN(const cluster_file::Reading reading,
                   cluster_file::read_cluster_file(config->cluster_file));
  const v1::ClusterFile& file = reading.file;
  ASSIGN_OR_RETURN(const v1::DraftRole draft, find_draft(file, *config));
  const v1::Security& security = file.security();
  config->model = draft.model();
  config->dial = {.address = cluster_file::control_address(file),
                  .ca = security.tls().ca(),
                  .tls_cert = security.tls().peer_cert(),
                  .tls_key = security.tls().peer_key(),
                  .token_file = security.tokens().draft()};
  config->insecure = security.insecure();
  config->device.name = draft.device();
  if (is_gpu(config->device)) config->device.gpu_math = file.numerics().gpu_math();
  config->threads = static_cast<int>(draft.threads());
  config->kv_memory_bytes = draft.kv_memory_bytes();
  config->max_sequences = static_cast<int>(draft.max_sequences());
  config->rejoin_timeout = cluster_file::to_duration(file.timeouts().rejoin());
  return absl::OkStatus();
}

}  // namespace

ParsedDraftFlags parse_draft_flags(int argc, char** argv) {
  ParsedDraftFlags result;
  result.exit_code = parse_into(argc, argv, &result.config);
  if (result.exit_code >= 0 || result.config.cluster_file.empty()) return result;
  DraftWorkerConfig config;
  config.cluster_file = result.config.cluster_file;
  config.name = result.config.name;
  if (const absl::Status status = apply_cluster_file(&config); !status.ok()) {
    std::fprintf(stderr, "brigade-draft-worker: %s\n", std::string(status.message()).c_str());
    result.exit_code = kUsageError;
    return result;
  }
  result.exit_code = parse_into(argc, argv, &config);
  result.config = std::move(config);
  return result;
}

absl::Status check(DraftWorkerConfig* config) {
  if (config->dial.address.empty()) {
    return absl::InvalidArgumentError("--join HOST:PORT or --cluster FILE is needed");
  }
  ASSIGN_OR_RETURN(const std::string host, host_of(config->dial.address));
  RETURN_IF_ERROR(
      check_trust(config->dial, cluster_file::is_loopback_address(host), config->insecure));
  RETURN_IF_ERROR(check_files(config->dial));
  struct stat info = {};
  if (config->model.empty()) {
    return absl::InvalidArgumentError("--model FOLDER is needed: a dense model");
  }
  if (stat(config->model.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("--model ", config->model, " is no folder"));
  }
  if (config->threads == 0) {
    config->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  RETURN_IF_ERROR(runtime::check(config->device));
  RETURN_IF_ERROR(check_range("--threads", config->threads, 1, kMaxThreads));
  RETURN_IF_ERROR(check_range("--max-sequences", config->max_sequences, 1, kMaxSequences));
  RETURN_IF_ERROR(check_range("--max-context", config->max_context, 0, 1 << 20));
  RETURN_IF_ERROR(check_range("--token-budget", config->token_budget, 1, 1 << 16));
  RETURN_IF_ERROR(check_range("--kv-memory", config->kv_memory_bytes, 1, int64_t{1} << 50));
  if (config->name.empty()) config->name = default_name();
  return absl::OkStatus();
}

std::string describe(const DraftWorkerConfig& config) {
  std::string text;
  const auto line = [&text](const char* key, const auto& value) {
    absl::StrAppend(&text, "  ", key, " ", value, "\n");
  };
  line("name", config.name);
  line("join", config.dial.address);
  line("model", config.model);
  line("device", runtime::describe(config.device));
  line("threads", config.threads);
  line("max-sequences", config.max_sequences);
  line("max-context", config.max_context == 0 ? "the model's" : absl::StrCat(config.max_context));
  line("token-budget", config.token_budget);
  line("kv-memory", config.kv_memory_bytes);
  line("tls", config.dial.ca.empty() ? "off" : "on");
  line("token", config.dial.token_file.empty() ? "none" : "sent");
  line("rejoin-timeout", absl::FormatDuration(config.rejoin_timeout));
  return text;
}

}  // namespace brigade::runtime::draft_worker
