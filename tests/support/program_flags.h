// Whether a command line is one that our programs take: read by their own parsers, in this process,
// so that nothing is started.
#pragma once

#include <string>
#include <vector>

namespace brigade::tests {

// words[0]: the program, with or without a folder. False, with the reason on stderr, for an unknown
// program, a flag that it does not have, or a cluster file that it refuses.
bool takes_flags(const std::vector<std::string>& words);

struct CommandResult {
  int exit_code = -1;
  std::string output;  // of both streams
};

// Runs a shell command for at most a minute.
CommandResult run_shell(const std::string& command);

}  // namespace brigade::tests
