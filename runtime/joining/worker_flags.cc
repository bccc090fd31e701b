#include "runtime/joining/worker_flags.h"

namespace brigade::runtime {
namespace {

constexpr int kUsageError = 2;

}  // namespace

void add_seconds(CLI::Option_group* group, const char* flag, absl::Duration* value,
                 const CLI::Validator& valid, const char* help) {
  group
      ->add_option_function<double>(
          flag, [value](double seconds) { *value = absl::Seconds(seconds); }, help)
      ->check(valid)
      ->type_name("SECONDS")
      ->default_str(absl::StrCat(absl::ToDoubleSeconds(*value)));
}

void add_size(CLI::Option_group* group, const char* flag, int64_t* value, const char* help,
              const std::string& shown_default) {
  group
      ->add_option_function<std::string>(
          flag,
          [value, flag](const std::string& text) {
            const absl::StatusOr<int64_t> bytes = cluster_file::parse_size(text);
            if (!bytes.ok()) {
              throw CLI::ValidationError(flag, std::string(bytes.status().message()));
            }
            *value = *bytes;
          },
          help)
      ->type_name("SIZE")
      ->default_str(shown_default);
}

void add_joining_flags(CLI::Option_group* group, const char* name, const char* token,
                       WorkerSettings* settings) {
  group->add_option("--cluster", settings->cluster_file,
                    "Cluster file with all settings; other flags win over it");
  group->add_option("--name", settings->name, name);
  group->add_option("--join", settings->dial.address,
                    "HOST:PORT of the coordinator's control port");
  group->add_option("--ca", settings->dial.ca,
                    "PEM file: the coordinator's certificate must be signed by it");
  group->add_option("--tls-cert", settings->dial.tls_cert, "PEM file: certificate to show");
  group->add_option("--tls-key", settings->dial.tls_key, "PEM file: its private key");
  group->add_option("--server-name", settings->dial.server_name,
                    "Name in the coordinator's certificate; default: the host that is dialled");
  group->add_option("--token-file", settings->dial.token_file, token);
  group->add_flag("--insecure", settings->insecure,
                  "Dial another host without --ca and --token-file");
  add_seconds(group, "--rejoin-timeout", &settings->rejoin_timeout, CLI::PositiveNumber,
              "Without a coordinator for so long it exits with 1");
}

void add_running_flags(CLI::Option_group* group, const char* model, WorkerSettings* settings) {
  group->add_option("--model", settings->model, model);
  add_device_flags(group, &settings->device);
  group->add_option("--threads", settings->threads, "Compute threads; 0: one a core")
      ->capture_default_str();
  group->add_flag("--exit-on-stdin-eof", settings->exit_on_stdin_eof,
                  "The end of stdin counts as SIGTERM");
}

int parse_into(const CommandLine& line, int argc, char** argv,
               const std::function<void(CLI::App&)>& add_flags) {
  CLI::App app(absl::StrCat(line.program, ": ", line.purpose));
  app.set_version_flag("--version", absl::StrCat(line.program, " ", kBuildVersion));
  app.footer(line.footer);
  add_flags(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked_for = error.get_exit_code() == 0;
    app.exit(error);
    return asked_for ? 0 : kUsageError;
  }
  return -1;
}

int fail_with(const CommandLine& line, const absl::Status& why) {
  std::fprintf(stderr, "%s: %s\n", line.program, std::string(why.message()).c_str());
  return kUsageError;
}

}  // namespace brigade::runtime
