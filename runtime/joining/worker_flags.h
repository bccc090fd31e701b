// The command line of either kind of worker: flags of WorkerSettings, and reading them over a
// cluster file; and kinds of values that the coordinator's flags have too. For the translation
// units that parse a command line.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "cluster_file/duration_and_size.h"
#include "kernels/core/build_version.h"
#include "runtime/device/device_flags.h"
#include "runtime/joining/worker_settings.h"

namespace brigade::runtime {

void add_seconds(CLI::Option_group* group, const char* flag, absl::Duration* value,
                 const CLI::Validator& valid, const char* help);
void add_size(CLI::Option_group* group, const char* flag, int64_t* value, const char* help,
              const std::string& shown_default);

// `name`: what --name means to this kind; `token`: whose it is.
void add_joining_flags(CLI::Option_group* group, const char* name, const char* token,
                       WorkerSettings* settings);
void add_running_flags(CLI::Option_group* group, const char* model, WorkerSettings* settings);

struct CommandLine {
  const char* program;
  const char* purpose;
  const char* footer;
};
// -1, or the exit code.
int parse_into(const CommandLine& line, int argc, char** argv,
               const std::function<void(CLI::App&)>& add_flags);
int fail_with(const CommandLine& line, const absl::Status& why);

// Flags over the cluster file, if one is named, over defaults. `apply` fills in what the file says.
template <typename Config>
int parse_over_cluster_file(const CommandLine& line, int argc, char** argv,
                            void (*add_flags)(CLI::App& app, Config* config),
                            absl::Status (*apply)(Config* config), Config* config) {
  const auto parse = [&] {
    return parse_into(line, argc, argv, [&](CLI::App& app) { add_flags(app, config); });
  };
  const int exit_code = parse();
  if (exit_code >= 0 || config->cluster_file.empty()) return exit_code;
  Config from_file;
  from_file.cluster_file = config->cluster_file;
  from_file.name = config->name;
  if (const absl::Status status = apply(&from_file); !status.ok()) return fail_with(line, status);
  *config = std::move(from_file);
  return parse();
}

}  // namespace brigade::runtime
