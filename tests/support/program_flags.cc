#include "tests/support/program_flags.h"

#include <sys/wait.h>

#include <cstdio>

#include "kernels/core/check.h"
#include "runtime/app/config.h"
#include "runtime/worker/worker_config.h"

namespace brigade::tests {

bool takes_flags(const std::vector<std::string>& words) {
  std::vector<std::string> copy = words;
  std::vector<char*> argv;
  for (std::string& word : copy) argv.push_back(word.data());
  const int argc = static_cast<int>(argv.size());
  const std::string program = words.at(0).substr(words[0].rfind('/') + 1);
  if (program == "brigade-coordinator") {
    return runtime::parse_command_line(argc, argv.data()).exit_code == -1;
  }
  if (program == "brigade-expert-worker") {
    return runtime::worker::parse_worker_flags(argc, argv.data()).exit_code == -1;
  }
  std::fprintf(stderr, "no program of ours: %s\n", words[0].c_str());
  return false;
}

CommandResult run_shell(const std::string& command) {
  CommandResult result;
  std::FILE* pipe = popen(("exec 2>&1; " + command).c_str(), "r");
  CHECK(pipe != nullptr);
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    result.output.append(buffer, got);
  }
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

}  // namespace brigade::tests
