#include "runtime/joining/worker_settings.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "brigade/v1/cluster_file.pb.h"
#include "cluster_file/cluster_layout.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

constexpr int kMaxThreads = 1024;

std::string default_name() {
  char host[256] = "worker";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, "-", getpid());
}

}  // namespace

absl::StatusOr<bool> check_worker(const std::string& model, WorkerSettings* settings) {
  if (settings->dial.address.empty()) {
    return absl::InvalidArgumentError("--join HOST:PORT or --cluster FILE is needed");
  }
  ASSIGN_OR_RETURN(const std::string host, host_of(settings->dial.address));
  const bool loopback = cluster_file::is_loopback_address(host);
  RETURN_IF_ERROR(check_trust(settings->dial, loopback, settings->insecure));
  RETURN_IF_ERROR(check_files(settings->dial));
  struct stat info = {};
  if (settings->model.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--model FOLDER is needed, ", model));
  }
  if (stat(settings->model.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("--model ", settings->model, " is no folder"));
  }
  if (settings->threads == 0) {
    settings->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  if (settings->threads < 1 || settings->threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("--threads is ", settings->threads, ", must be from 1 to ", kMaxThreads));
  }
  RETURN_IF_ERROR(check(settings->device));
  if (settings->name.empty()) settings->name = default_name();
  return loopback;
}

void take_cluster_file(const v1::ClusterFile& file, const std::string& host,
                       const std::string& token_file, WorkerSettings* settings) {
  const v1::Security& security = file.security();
  settings->dial = {.address = cluster_file::control_address(file),
                    .ca = security.tls().ca(),
                    .tls_cert = security.tls().peer_cert(),
                    .tls_key = security.tls().peer_key(),
                    .token_file = token_file};
  settings->insecure = security.insecure();
  if (is_gpu(settings->device)) {
    settings->device.gpu_math = file.numerics().gpu_math();
    settings->device.cuda_module = cluster_file::find_host(file, host)->cuda_module();
  }
  settings->rejoin_timeout = cluster_file::to_duration(file.timeouts().rejoin());
}

absl::Status no_such_name(const WorkerSettings& settings, const std::string& kind,
                          const std::vector<std::string>& names) {
  if (settings.name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cluster needs --name: which of its ", kind, "s this is"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--name ", settings.name, ": ", settings.cluster_file, " has no such ", kind,
                   "; it has ", names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

std::string describe_worker(const WorkerSettings& settings) {
  std::string text;
  const auto line = [&text](const char* key, const auto& value) {
    absl::StrAppend(&text, "  ", key, " ", value, "\n");
  };
  line("name", settings.name);
  line("join", settings.dial.address);
  line("model", settings.model);
  line("device", describe(settings.device));
  line("threads", settings.threads);
  line("tls", settings.dial.ca.empty() ? "off" : "on");
  line("token", settings.dial.token_file.empty() ? "none" : "sent");
  line("rejoin-timeout", absl::FormatDuration(settings.rejoin_timeout));
  return text;
}

}  // namespace brigade::runtime
