// brigade validate: reads a cluster file as every process of the cluster would, and says what is
// wrong or what would run. Starts nothing.
#include <cstdio>
#include <memory>
#include <set>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster_file/cluster_layout.h"
#include "cluster_file/read_cluster_file.h"
#include "launcher/cli/verb.h"
#include "launcher/exit_codes.h"

namespace brigade::launcher {
namespace {

struct ValidateFlags {
  std::string file;
  bool print = false;
};

std::string threads_text(int64_t threads) {
  return threads == 0 ? "one thread a core"
                      : absl::StrCat(threads, threads == 1 ? " thread" : " threads");
}

std::string port_text(int64_t port) { return port == 0 ? "any free port" : absl::StrCat(port); }

void row(const std::string& name, const std::string& host, const std::string& rest) {
  std::printf("%-20s %-16s %s\n", name.c_str(), host.c_str(), rest.c_str());
}

void print_plan(const v1::ClusterFile& file) {
  const auto workers = cluster_file::expanded_workers(file);
  const v1::CoordinatorRole& coordinator = file.coordinator();
  std::set<std::string> hosts = {coordinator.host()};
  hosts.merge(cluster_file::joining_hosts(file));
  std::printf("%s: %zu processes on %zu %s, model %s\n", file.name().c_str(),
              workers.size() + static_cast<size_t>(file.drafts_size()) + 1, hosts.size(),
              hosts.size() == 1 ? "host" : "hosts", file.model().path().c_str());
  const std::string control =
      !cluster_file::has_joiners(file)
          ? ""
          : absl::StrCat(", control ", port_text(coordinator.control_port()));
  const std::string plane =
      workers.empty() ? "" : absl::StrCat("; data plane ", coordinator.data_plane());
  const std::string dials = coordinator.control_port() == 0
                                ? "; dials the coordinator's control port"
                                : absl::StrCat("; dials ", cluster_file::control_address(file));
  row("coordinator", coordinator.host(),
      absl::StrCat(coordinator.device(), ", ", threads_text(coordinator.threads()), "; listens at ",
                   coordinator.listen_address(), ": API ", port_text(coordinator.port()), control,
                   "; metrics ", port_text(coordinator.metrics_port()), plane));
  for (const auto& worker : workers) {
    row(worker.name, worker.host,
        absl::StrCat(worker.device, ", ", threads_text(worker.threads), dials));
  }
  for (const v1::DraftRole& draft : file.drafts()) {
    row(draft.name(), draft.host(),
        absl::StrCat("draft ", draft.model(), ", ", threads_text(draft.threads()), dials));
  }
}

int run(const ValidateFlags& flags) {
  const auto reading = cluster_file::read_cluster_file(flags.file);
  if (!reading.ok()) {
    std::fprintf(stderr, "%s\n", std::string(reading.status().message()).c_str());
    return kBadUsage;
  }
  if (flags.print) {
    std::fputs(cluster_file::to_yaml(reading->file).c_str(), stdout);
  } else {
    print_plan(reading->file);
  }
  for (const std::string& note : reading->notes) {
    std::fprintf(stderr, "%s: note: %s\n", flags.file.c_str(), note.c_str());
  }
  return kOk;
}

}  // namespace

Verb add_validate_verb(CLI::App& root) {
  auto flags = std::make_shared<ValidateFlags>();
  CLI::App* app = root.add_subcommand("validate", "What a cluster file would start, or its faults");
  app->add_option("FILE", flags->file, "Cluster file (YAML)")->required();
  app->add_flag("--print", flags->print, "Print the file with all defaults filled in");
  app->footer(std::string("Faults are printed one a line as FILE:LINE:COLUMN: key: what is wrong.\n"
                          "Examples:\n"
                          "  brigade validate deploy/configs/one_host_cpu.yaml\n"
                          "  brigade validate --print cluster.yaml > whole.yaml\n\n") +
              kExitCodesHelp);
  return {app, [flags] { return run(*flags); }};
}

}  // namespace brigade::launcher
