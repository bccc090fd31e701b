// brigade-coordinator: config, construct, run.
#include <cstdio>
#include <string>

#include "runtime/app/config.h"
#include "runtime/app/coordinator.h"
#include "runtime/app/shutdown_signals.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

int main(int argc, char** argv) {
  namespace runtime = brigade::runtime;
  runtime::ParsedCommandLine parsed = runtime::parse_command_line(argc, argv);
  if (parsed.exit_code >= 0) return parsed.exit_code;
  if (const absl::Status status = runtime::check(&parsed.config); !status.ok()) {
    std::fprintf(stderr, "brigade-coordinator: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  runtime::ShutdownSignals signals;  // before any thread
  spdlog::set_default_logger(spdlog::stderr_color_mt("coordinator"));
  if (parsed.config.exit_on_stdin_eof) signals.watch_stdin();
  spdlog::info("settings\n{}", runtime::describe(parsed.config));
  return runtime::run_coordinator(parsed.config, signals);
}
