#include "tests/support/link_bed.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/core/check.h"
#include "tests/support/child_process.h"

extern char** environ;

namespace brigade::tests {
namespace {

constexpr int kAnswerMs = 20000;

std::string read_line(int fd) {
  std::string line;
  pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
  for (char c; poll(&waiting, 1, kAnswerMs) > 0 && read(fd, &c, 1) == 1 && c != '\n';)
    line.push_back(c);
  return line;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinkBed>> LinkBed::create(
    uint64_t seed, const std::vector<std::pair<std::string, std::string>>& links) {
  std::unique_ptr<LinkBed> bed(new LinkBed);
  std::vector<std::string> words = {program_folder() + "/link_emulator", absl::StrCat(seed)};
  for (const auto& [a, b] : links) {
    words.push_back(bed->namespace_of(a));
    words.push_back(bed->namespace_of(b));
  }
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  int to[2], from[2];
  CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  CHECK(posix_spawn(&bed->pid_, pointers[0], &actions, nullptr, pointers.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]);
  close(from[1]);
  bed->to_ = to[1];
  bed->from_ = from[0];
  if (read_line(bed->from_) == "ready") return bed;
  return absl::UnavailableError("root, /dev/net/tun and the `ip` program to make namespaces");
}

LinkBed::~LinkBed() {
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

std::string LinkBed::ask(const std::string& line) {
  const std::string text = line + "\n";
  CHECK(write(to_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  return read_line(from_);
}

void LinkBed::set(int link, const std::string& command) {
  CHECK(ask(absl::StrCat(link, " ", command)) == "done");
}

uint64_t LinkBed::count(int link, const std::string& direction, const std::string& name) {
  const std::string answer = ask(absl::StrCat(link, " counts"));
  bool in_direction = false;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(answer, ' '))) {
    if (word == "there" || word == "back") in_direction = word == direction;
    uint64_t value = 0;
    if (in_direction && absl::StartsWith(word, name + "=") &&
        absl::SimpleAtoi(word.substr(name.size() + 1), &value))
      return value;
  }
  CHECK(false);
  return 0;
}

std::string LinkBed::namespace_of(const std::string& host) const {
  return absl::StrCat("brigade-", getpid(), "-", host);
}

void LinkBed::inside(const std::string& host, const std::function<void()>& work) const {
  std::thread([&] {
    const int there = open(("/var/run/netns/" + namespace_of(host)).c_str(), O_RDONLY | O_CLOEXEC);
    CHECK(there >= 0 && setns(there, CLONE_NEWNET) == 0);
    close(there);
    work();
  }).join();
}

}  // namespace brigade::tests
