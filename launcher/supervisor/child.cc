#include "launcher/supervisor/child.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace brigade::launcher {
namespace {

void close_end(int* descriptor) {
  if (*descriptor >= 0) close(*descriptor);
  *descriptor = -1;
}

struct Pipe {
  int read = -1, write = -1;

  bool open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
  ~Pipe() {
    close_end(&read);
    close_end(&write);
  }
};

// Between fork and exec in a process with threads: system calls only.
[[noreturn]] void become(char* const* argv, pid_t parent, int in, int out, int failure) {
  setsid();  // a terminal's Ctrl-C is for the supervisor, which ends its processes in order
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before the line above
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  // Another child's stdin must not stay open here: its end would never be seen.
  syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
  struct sigaction usual = {};
  usual.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) sigaction(number, &usual, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvp(argv[0], argv);
  const int error = errno;
  (void)!write(failure, &error, sizeof(error));
  _exit(127);
}

}  // namespace

absl::StatusOr<Child> Child::spawn(const std::vector<std::string>& argv) {
  const auto failed = [&argv](const char* what, int error) {
    const std::string text =
        absl::StrCat("cannot start ", argv.front(), ": ", what, std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(text) : absl::InternalError(text);
  };
  Pipe in, out, failure;
  if (!in.open() || !out.open() || !failure.open()) return failed("pipe: ", errno);
  std::vector<char*> pointers;
  pointers.reserve(argv.size() + 1);
  for (const std::string& word : argv) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return failed("fork: ", errno);
  if (pid == 0) become(pointers.data(), parent, in.read, out.write, failure.write);
  Child child;
  child.pid_ = pid;
  child.stdin_ = std::exchange(in.write, -1);
  child.output_ = std::exchange(out.read, -1);
  close_end(&failure.write);
  int error = 0;
  // Ends at once: exec closes the other end.
  if (read(failure.read, &error, sizeof(error)) == sizeof(error)) return failed("", error);
  child.exit_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (child.exit_ < 0) return failed("pidfd_open: ", errno);
  return child;
}

Child::Child(Child&& other) noexcept { swap(other); }

Child& Child::operator=(Child&& other) noexcept {
  Child moved(std::move(other));
  swap(moved);
  return *this;
}

Child::~Child() {
  if (pid_ > 0) {
    kill_group();
    reap();
  }
  close_end(&stdin_);
  close_end(&output_);
  close_end(&exit_);
}

void Child::swap(Child& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(stdin_, other.stdin_);
  std::swap(output_, other.output_);
  std::swap(exit_, other.exit_);
}

void Child::signal(int number) {
  if (pid_ > 0) kill(pid_, number);
}

void Child::kill_group() {
  if (pid_ > 0) kill(-pid_, SIGKILL);
}

void Child::close_stdin() { close_end(&stdin_); }

ProcessEnd Child::reap() {
  kill_group();  // the unreaped leader keeps the group's number ours
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  ProcessEnd end;
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
  } else {
    end.exit_code = WEXITSTATUS(status);
  }
  return end;
}

}  // namespace brigade::launcher
