#include "runtime/app/config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "cluster_file/read_cluster_file.h"
#include "kernels/core/status.h"
#include "runtime/app/cluster_file_settings.h"
#include "runtime/app/speculation_flags.h"
#include "runtime/joining/worker_flags.h"

namespace brigade::runtime {
namespace {

constexpr int kUsageError = 2;
constexpr int kMaxThreads = 1024;

constexpr const char* kFooter =
    "Examples:\n"
    "  brigade-coordinator --model models/demo/target\n"
    "  brigade-coordinator --model m --listen 127.0.0.1:0 --port-file port --threads 4\n"
    "  brigade-coordinator --cluster deploy/configs/one_host_cpu.yaml --port-file port\n"
    "  brigade-coordinator --model m --listen 0.0.0.0:50051 --tls-cert c.pem --tls-key k.pem \\\n"
    "      --token-file token --kv-memory 8G\n\n"
    "SIGTERM or SIGINT drains: no new requests, open streams finish within --grace; a second one\n"
    "stops at once.\n"
    "Exit codes: 0 stopped in order, 1 a fault while serving, 2 bad usage, settings or model.";

struct SecondFlags {
  double grace, reader_timeout, queue_timeout;
};

void add_model_flags(CLI::App& app, CoordinatorConfig* config) {
  CLI::Option_group* group = app.add_option_group("Model");
  group->add_option("--model", config->model,
                    "Folder with config.json, *.safetensors, tokenizer.json");
  group->add_option("--name", config->name, "Name shown to clients; default: the folder's");
  add_device_flags(group, &config->device);
  add_graph_flag(group, &config->device);
  group->add_option("--threads", config->threads, "Compute threads; 0: one a core")
      ->capture_default_str();
  group
      ->add_option("--max-context", config->max_context, "Shorten the model's context; 0: as it is")
      ->capture_default_str();
  add_size(group, "--kv-memory", &config->kv_memory_bytes,
           "Memory for the KV cache, such as 512M or 4G; default: a quarter of what is free, "
           "8G at most",
           "");
  group->add_option("--kv-block", config->kv_block_size, "Positions of one KV block")
      ->capture_default_str();
  group->add_option("--kv-dtype", config->kv_dtype, "f32, bf16 or f16; part of the numerics")
      ->capture_default_str();
}

void add_scheduling_flags(CLI::App& app, CoordinatorConfig* config, SecondFlags* seconds) {
  CLI::Option_group* group = app.add_option_group("Scheduling");
  EngineConfig& engine = config->engine;
  group->add_option("--token-budget", config->token_budget, "Tokens in one step at most")
      ->capture_default_str();
  group
      ->add_option("--prefill-chunk", engine.prefill_chunk,
                   "Prompt tokens of one request in a step")
      ->capture_default_str();
  group->add_option("--max-sequences", engine.max_running_sequences, "Sequences running at once")
      ->capture_default_str();
  group
      ->add_option("--max-waiting", engine.max_waiting_requests,
                   "Requests waiting at most; more get RESOURCE_EXHAUSTED")
      ->capture_default_str();
  group
      ->add_option("--max-waiting-tokens", engine.max_waiting_tokens,
                   "Prompt tokens waiting at most")
      ->capture_default_str();
  group->add_option("--queue-timeout", seconds->queue_timeout, "Seconds a request may wait")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  group
      ->add_option("--stream-capacity", engine.stream_capacity,
                   "Tokens held for a slow reader before its request pauses")
      ->capture_default_str();
  group
      ->add_option("--reader-timeout", seconds->reader_timeout,
                   "Seconds a client may read nothing before it is cut")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  group
      ->add_option("--default-max-tokens", config->default_max_tokens,
                   "For requests that set no max_tokens")
      ->capture_default_str();
  group->add_flag("!--no-prefix-cache", config->prefix_cache, "Share no prefixes between requests");
}

void add_door_flags(CLI::App& app, CoordinatorConfig* config, SecondFlags* seconds) {
  CLI::Option_group* group = app.add_option_group("Listening");
  DoorOptions& door = config->door;
  group->add_option("--listen", door.listen, "host:port of the API; port 0: any free one")
      ->capture_default_str();
  group->add_option("--port-file", config->port_file, "Write the port here once it is open");
  group
      ->add_option("--metrics-listen", config->metrics_listen,
                   "host:port of the Prometheus metrics; empty: none")
      ->capture_default_str();
  group->add_option("--metrics-port-file", config->metrics_port_file,
                    "Write the metrics port here");
  group->add_option("--tls-cert", door.tls_cert, "PEM file: the server's certificate chain");
  group->add_option("--tls-key", door.tls_key, "PEM file: its private key");
  group->add_option("--client-ca", door.client_ca,
                    "PEM file: clients must show a certificate signed by it");
  group->add_option("--token-file", door.token_file, "File with the token clients must send");
  group->add_option("--operator-token-file", door.operator_token_file,
                    "File with the operators' token, which alone shows the cluster then");
  group->add_option("--draft-token-file", door.draft_token_file,
                    "File with the token draft workers must send");
  group->add_flag("--insecure", door.insecure, "Allow a non-loopback address without protection");
  group->add_option("--max-request-bytes", door.max_request_bytes, "Larger requests are refused")
      ->capture_default_str();
  group->add_option("--grace", seconds->grace, "Seconds open streams get to finish on SIGTERM")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  group->add_flag("--exit-on-stdin-eof", config->exit_on_stdin_eof,
                  "Drain as on SIGTERM when stdin ends: no orphan when the parent is killed");
}

absl::Status check_range(const char* flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is ", value, ", must be from ", low, " to ", high));
}

std::string last_folder(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

int64_t default_kv_memory() {
  const int64_t free_bytes =
      static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::clamp<int64_t>(free_bytes / 4, int64_t{16} << 20, int64_t{8} << 30);
}

namespace {

// Flags that were given replace values in `config`. -1, or the exit code.
int parse_into(int argc, char** argv, CoordinatorConfig* config) {
  SecondFlags seconds{absl::ToDoubleSeconds(config->grace),
                      absl::ToDoubleSeconds(config->engine.reader_timeout),
                      absl::ToDoubleSeconds(config->engine.queue_timeout)};
  CLI::App app("brigade-coordinator: serves a model over gRPC.");
  app.set_version_flag("--version", "brigade-coordinator 0.1.0");
  app.footer(kFooter);
  app.add_option("--cluster", config->cluster_file,
                 "Cluster file with all settings; other flags win over it");
  add_model_flags(app, config);
  add_scheduling_flags(app, config, &seconds);
  add_door_flags(app, config, &seconds);
  add_cluster_flags(app, &config->cluster);
  add_speculation_flags(app, &config->speculation, &config->engine.max_draft_depth);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked_for = error.get_exit_code() == 0;
    app.exit(error);
    return asked_for ? 0 : kUsageError;
  }
  config->grace = absl::Seconds(seconds.grace);
  config->engine.reader_timeout = config->door.max_reader_stall =
      absl::Seconds(seconds.reader_timeout);
  config->engine.queue_timeout = absl::Seconds(seconds.queue_timeout);
  return -1;
}

}  // namespace

ParsedCommandLine parse_command_line(int argc, char** argv) {
  ParsedCommandLine result;
  result.exit_code = parse_into(argc, argv, &result.config);
  const std::string path = result.config.cluster_file;
  if (result.exit_code >= 0 || path.empty()) return result;
  result.config = CoordinatorConfig();
  const auto reading = cluster_file::read_cluster_file(path);
  if (!reading.ok()) {
    std::fprintf(stderr, "%s\n", std::string(reading.status().message()).c_str());
    result.exit_code = kUsageError;
    return result;
  }
  apply_cluster_file(reading->file, &result.config);
  // Once more over the file: the flags win.
  result.exit_code = parse_into(argc, argv, &result.config);
  return result;
}

DoorOptions control_door(const CoordinatorConfig& config) {
  DoorOptions door = config.door;
  door.kind = DoorKind::kControl;
  door.listen = config.cluster.control_listen;
  door.worker_token_file = config.cluster.worker_token_file;
  return door;
}

absl::Status check(CoordinatorConfig* config) {
  if (config->threads == 0) {
    config->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  RETURN_IF_ERROR(check(config->device));
  // What a GPU has left is known when it is open.
  const bool kv_on_gpu = is_gpu(config->device) && config->kv_memory_bytes == 0;
  if (config->kv_memory_bytes == 0 && !kv_on_gpu) config->kv_memory_bytes = default_kv_memory();
  RETURN_IF_ERROR(check_range("--threads", config->threads, 1, kMaxThreads));
  if (!kv_on_gpu) {
    RETURN_IF_ERROR(check_range("--kv-memory", config->kv_memory_bytes, 1 << 16, int64_t{1} << 50));
  }
  RETURN_IF_ERROR(check_range("--kv-block", config->kv_block_size, 1, 256));
  RETURN_IF_ERROR(check_range("--max-context", config->max_context, 0, 1 << 30));
  RETURN_IF_ERROR(check_range("--token-budget", config->token_budget, 1, 65536));
  RETURN_IF_ERROR(check_range("--default-max-tokens", config->default_max_tokens, 1, 1 << 30));
  RETURN_IF_ERROR(
      check_range("--max-request-bytes", config->door.max_request_bytes, 1024, 1 << 30));
  if (config->model.empty()) {
    return absl::InvalidArgumentError("--model is missing: the folder of a model, or --cluster");
  }
  struct stat info = {};
  if (stat(config->model.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("--model ", config->model, " is no folder"));
  }
  if (config->name.empty()) config->name = last_folder(config->model);
  config->engine.max_rows = config->token_budget;
  config->door.worker_token_file = config->cluster.worker_token_file;
  RETURN_IF_ERROR(check(&config->cluster));
  RETURN_IF_ERROR(apply_speculation(config->speculation, config->cluster.drafts, &config->engine));
  return validate(config->engine);
}

std::string describe(const CoordinatorConfig& config) {
  const EngineConfig& engine = config.engine;
  std::string text;
  const auto line = [&text](const char* key, const auto& value) {
    absl::StrAppend(&text, "  ", key, " ", value, "\n");
  };
  line("model", config.model);
  line("name", config.name);
  line("device", describe(config.device));
  line("threads", config.threads);
  line("kv-memory", config.kv_memory_bytes);
  line("kv-block", config.kv_block_size);
  line("kv-dtype", config.kv_dtype);
  line("token-budget", config.token_budget);
  line("prefill-chunk", engine.prefill_chunk);
  line("max-sequences", engine.max_running_sequences);
  line("max-waiting", engine.max_waiting_requests);
  line("max-waiting-tokens", engine.max_waiting_tokens);
  line("queue-timeout", absl::FormatDuration(engine.queue_timeout));
  line("stream-capacity", engine.stream_capacity);
  line("reader-timeout", absl::FormatDuration(engine.reader_timeout));
  line("prefix-cache", config.prefix_cache ? "on" : "off");
  line("speculation", describe_speculation(engine));
  line("listen", config.door.listen);
  line("tls", config.door.tls_cert.empty() ? "off" : "on");
  line("token", config.door.token_file.empty() ? "none" : "required");
  line("metrics-listen", config.metrics_listen.empty() ? "none" : config.metrics_listen);
  line("grace", absl::FormatDuration(config.grace));
  return text + describe(config.cluster);
}

}  // namespace brigade::runtime
