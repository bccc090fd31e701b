// `brigade up --detach`: the supervisor as a process of its own.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launcher/supervisor/up_session.h"

namespace brigade::launcher {
namespace {

volatile std::sig_atomic_t supervisor_pid = 0;

// Ctrl-C while it starts is meant for the supervisor, which is in another session.
void pass_on(int number) {
  if (supervisor_pid > 0) kill(supervisor_pid, number);
}

void pass_on_signals(pid_t child) {
  supervisor_pid = child;
  struct sigaction action = {};
  action.sa_handler = pass_on;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// The verdict: a status code and a sentence.
void write_verdict(int descriptor, const absl::Status& status) {
  const std::string text =
      absl::StrCat(static_cast<int>(status.code()), " ", std::string(status.message()));
  (void)!write(descriptor, text.data(), text.size());  // the reader may be gone
}

absl::Status read_verdict(int descriptor) {
  std::string text;
  char bytes[4096];
  while (true) {
    const ssize_t count = read(descriptor, bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(bytes, static_cast<size_t>(count));
  }
  int code = 0;
  const size_t space = text.find(' ');
  if (space == std::string::npos || !absl::SimpleAtoi(text.substr(0, space), &code)) {
    return absl::AbortedError("the supervisor died while the cluster started");
  }
  return absl::Status(static_cast<absl::StatusCode>(code), text.substr(space + 1));
}

// Nothing of the terminal stays open in the supervisor.
void leave_terminal(const std::string& folder) {
  std::fflush(nullptr);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int errors = open((folder + "/logs/supervisor.stderr").c_str(),
                          O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  dup2(nothing, STDIN_FILENO);
  dup2(nothing, STDOUT_FILENO);
  dup2(errors >= 0 ? errors : nothing, STDERR_FILENO);
  close(nothing);
  if (errors >= 0) close(errors);
}

[[noreturn]] void supervise(const LaunchPlan& plan, StateFolder& folder, const UpOptions& options,
                            int verdict) {
  setsid();
  bool announced = false;
  const absl::Status end = run_cluster(plan, folder, options, [&] {
    write_verdict(verdict, absl::OkStatus());
    close(verdict);
    announced = true;
    leave_terminal(folder.path());
  });
  if (!announced) write_verdict(verdict, end);
  _exit(end.ok() ? 0 : 1);
}

}  // namespace

absl::Status run_cluster_detached(const LaunchPlan& plan, StateFolder& folder,
                                  const UpOptions& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError("cannot make a pipe");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return absl::InternalError("cannot start the supervisor's process");
  if (child == 0) {
    close(ends[0]);
    supervise(plan, folder, options, ends[1]);
  }
  pass_on_signals(child);
  close(ends[1]);
  const absl::Status verdict = read_verdict(ends[0]);  // ends with the supervisor at the latest
  close(ends[0]);
  if (!verdict.ok()) waitpid(child, nullptr, 0);
  return verdict;
}

}  // namespace brigade::launcher
