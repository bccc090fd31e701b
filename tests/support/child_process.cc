#include "tests/support/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <fstream>
#include <sstream>

#include "absl/time/clock.h"
#include "kernels/core/check.h"

extern char** environ;

namespace brigade::tests {

ChildProcess::ChildProcess(const std::vector<std::string>& argv, const std::string& stderr_file) {
  int ends[2];
  CHECK(pipe2(ends, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO,
                                   stderr_file.empty() ? "/dev/null" : stderr_file.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  CHECK(posix_spawn(&pid_, pointers[0], &actions, nullptr, pointers.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  stdout_ = ends[0];
}

ChildProcess::~ChildProcess() {
  if (!exit_code_) {
    signal(SIGKILL);
    wait();
  }
  close(stdout_);
}

void ChildProcess::signal(int number) {
  if (!exit_code_) kill(pid_, number);
}

bool ChildProcess::fill(absl::Time deadline) {
  const absl::Duration left = deadline - absl::Now();
  if (left <= absl::ZeroDuration()) return false;
  pollfd waiting = {.fd = stdout_, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0) return false;
  char bytes[4096];
  const ssize_t count = read(stdout_, bytes, sizeof(bytes));
  if (count <= 0) return false;
  buffered_.append(bytes, static_cast<size_t>(count));
  return true;
}

std::optional<std::string> ChildProcess::read_line(absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  size_t end;
  while ((end = buffered_.find('\n')) == std::string::npos) {
    if (!fill(deadline)) return std::nullopt;
  }
  std::string line = buffered_.substr(0, end);
  buffered_.erase(0, end + 1);
  return line;
}

std::string ChildProcess::read_all(absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  while (fill(deadline)) {
  }
  return std::exchange(buffered_, {});
}

std::optional<int> ChildProcess::wait(absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  while (!exit_code_) {
    int status = 0;
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == pid_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else if (absl::Now() > deadline) {
      return std::nullopt;
    } else {
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
  return exit_code_;
}

std::string program_folder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  CHECK(length > 0);
  const std::string full(path, static_cast<size_t>(length));
  return full.substr(0, full.rfind('/'));
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string wait_for_file(const std::string& path, absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  while (absl::Now() < deadline) {
    if (std::string text = read_file(path); !text.empty()) return text;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return "";
}

}  // namespace brigade::tests
