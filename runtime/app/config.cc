#include "runtime/app/config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

constexpr int kUsageError = 2;
constexpr int kMaxThreads = 1024;

constexpr const char* kFooter =
    "Examples:\n"
    "  brigade-coordinator --model models/demo/target\n"
    "  brigade-coordinator --model m --listen 127.0.0.1:0 --port-file port --threads 4\n"
    "  brigade-coordinator --model m --listen 0.0.0.0:50051 --tls-cert c.pem --tls-key k.pem \\\n"
    "      --token-file token --kv-memory 8G\n\n"
    "SIGTERM or SIGINT drains: no new requests, open streams finish within --grace; a second one\n"
    "stops at once.\n"
    "Exit codes: 0 stopped in order, 1 a fault while serving, 2 bad usage, settings or model.";

struct SecondFlags {
  double grace = 30;
  double reader_timeout = 60;
  double queue_timeout = 600;
};

void add_model_flags(CLI::App& app, CoordinatorConfig* config, std::string* kv_memory) {
  CLI::Option_group* group = app.add_option_group("Model");
  group
      ->add_option("--model", config->model,
                   "Folder with config.json, *.safetensors, tokenizer.json")
      ->required();
  group->add_option("--name", config->name, "Name shown to clients; default: the folder's");
  group->add_option("--device", config->device, "cpu, or cpu_async (a test device)")
      ->capture_default_str();
  group->add_option("--threads", config->threads, "Compute threads; 0: one a core")
      ->capture_default_str();
  group
      ->add_option("--max-context", config->max_context, "Shorten the model's context; 0: as it is")
      ->capture_default_str();
  group->add_option(
      "--kv-memory", *kv_memory,
      "Memory for the KV cache, such as 512M or 4G; default: a quarter of what is free, "
      "8G at most");
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

absl::StatusOr<int64_t> parse_bytes(const std::string& text) {
  std::string digits = text;
  int shift = 0;
  if (!digits.empty() && (digits.back() == 'B' || digits.back() == 'b')) digits.pop_back();
  if (!digits.empty()) {
    switch (digits.back()) {
      case 'k':
      case 'K':
        shift = 10;
        break;
      case 'm':
      case 'M':
        shift = 20;
        break;
      case 'g':
      case 'G':
        shift = 30;
        break;
      case 't':
      case 'T':
        shift = 40;
        break;
      default:
        break;
    }
    if (shift > 0) digits.pop_back();
  }
  int64_t value = 0;
  if (digits.find_first_not_of("0123456789") != std::string::npos ||
      !absl::SimpleAtoi(digits, &value) || value > (std::numeric_limits<int64_t>::max() >> shift)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no size; write bytes, or 512M, 4G"));
  }
  return value << shift;
}

int64_t default_kv_memory() {
  const int64_t free_bytes =
      static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::clamp<int64_t>(free_bytes / 4, int64_t{16} << 20, int64_t{8} << 30);
}

ParsedCommandLine parse_command_line(int argc, char** argv) {
  ParsedCommandLine result;
  CoordinatorConfig& config = result.config;
  SecondFlags seconds;
  std::string kv_memory;
  CLI::App app("brigade-coordinator: serves a model over gRPC.");
  app.set_version_flag("--version", "brigade-coordinator 0.1.0");
  app.footer(kFooter);
  add_model_flags(app, &config, &kv_memory);
  add_scheduling_flags(app, &config, &seconds);
  add_door_flags(app, &config, &seconds);
  add_cluster_flags(app, &config.cluster);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked_for = error.get_exit_code() == 0;
    app.exit(error);
    result.exit_code = asked_for ? 0 : kUsageError;
    return result;
  }
  config.grace = absl::Seconds(seconds.grace);
  config.engine.reader_timeout = config.door.max_reader_stall =
      absl::Seconds(seconds.reader_timeout);
  config.engine.queue_timeout = absl::Seconds(seconds.queue_timeout);
  if (!kv_memory.empty()) {
    const absl::StatusOr<int64_t> bytes = parse_bytes(kv_memory);
    if (!bytes.ok()) {
      std::fprintf(stderr, "brigade-coordinator: --kv-memory: %s\n",
                   std::string(bytes.status().message()).c_str());
      result.exit_code = kUsageError;
      return result;
    }
    config.kv_memory_bytes = *bytes;
  }
  return result;
}

absl::Status check(CoordinatorConfig* config) {
  if (config->threads == 0) {
    config->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  if (config->kv_memory_bytes == 0) config->kv_memory_bytes = default_kv_memory();
  RETURN_IF_ERROR(check_range("--threads", config->threads, 1, kMaxThreads));
  RETURN_IF_ERROR(check_range("--kv-memory", config->kv_memory_bytes, 1 << 16, int64_t{1} << 50));
  RETURN_IF_ERROR(check_range("--kv-block", config->kv_block_size, 1, 256));
  RETURN_IF_ERROR(check_range("--max-context", config->max_context, 0, 1 << 30));
  RETURN_IF_ERROR(check_range("--token-budget", config->token_budget, 1, 65536));
  RETURN_IF_ERROR(check_range("--default-max-tokens", config->default_max_tokens, 1, 1 << 30));
  RETURN_IF_ERROR(
      check_range("--max-request-bytes", config->door.max_request_bytes, 1024, 1 << 30));
  struct stat info = {};
  if (stat(config->model.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("--model ", config->model, " is no folder"));
  }
  if (config->name.empty()) config->name = last_folder(config->model);
  config->engine.max_rows = config->token_budget;
  RETURN_IF_ERROR(check(&config->cluster));
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
  line("device", config.device);
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
  line("listen", config.door.listen);
  line("tls", config.door.tls_cert.empty() ? "off" : "on");
  line("token", config.door.token_file.empty() ? "none" : "required");
  line("metrics-listen", config.metrics_listen.empty() ? "none" : config.metrics_listen);
  line("grace", absl::FormatDuration(config.grace));
  return text + describe(config.cluster);
}

}  // namespace brigade::runtime
