#include "tests/support/peer_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

extern char** environ;

namespace brigade::tests {

void write_address(int fd, const std::string& bytes) {
  const std::string line = absl::BytesToHexString(bytes) + "\n";
  EXPECT_EQ(write(fd, line.data(), line.size()), static_cast<ssize_t>(line.size()));
}

std::string read_address(int fd) {
  std::string line;
  for (char c; read(fd, &c, 1) == 1 && c != '\n';) line.push_back(c);
  return absl::HexStringToBytes(line);
}

PeerProcess::PeerProcess(const std::vector<std::pair<std::string, std::string>>& environment) {
  int to[2], from[2];
  EXPECT_EQ(pipe(to) + pipe(from), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  for (const int fd : {to[0], to[1], from[0], from[1]})
    posix_spawn_file_actions_addclose(&actions, fd);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  const char* arguments[] = {"peer", nullptr};
  EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, const_cast<char**>(arguments),
                        environ),
            0);
  for (const auto& [name, value] : environment) unsetenv(name.c_str());
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]);
  close(from[1]);
  to_ = to[1];
  from_ = from[0];
}

PeerProcess::~PeerProcess() {
  kill_and_wait();
  close(to_);
  close(from_);
}

void PeerProcess::signal(int number) {
  if (pid_ > 0) kill(pid_, number);
}

void PeerProcess::kill_and_wait() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

bool PeerProcess::ended() {
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = 0;
  return pid_ == 0;
}

expert_parallel::PeerId PeerProcess::join(TransportNode& node) {
  const expert_parallel::PeerId link = *node.transport().open_link();
  const absl::Status status = node.transport().connect(link, read_address(from_));
  EXPECT_TRUE(status.ok()) << status;
  write_address(to_, *node.transport().address(link));
  return link;
}

}  // namespace brigade::tests
