// How a command line reaches another host: the words of launch.remote_shell, with the command
// behind them or in their midst. Pure functions of their arguments.
//
// The command is given as one string, quoted for a POSIX shell, where a shell will read it: in
// place of the word {command}, or behind ssh-like programs (ssh, autossh, rsh, dbclient), which
// join their words with spaces for the remote shell. Behind any other program, such as "ip netns
// exec {host}", it follows as separate words, unquoted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace brigade::launcher {

// Splits as a POSIX shell splits words: spaces, 'single', "double" and \ quoting; no expansions.
// INVALID_ARGUMENT for an open quote.
absl::StatusOr<std::vector<std::string>> split_words(const std::string& text);

// One word for a POSIX shell that reads back as `word`.
std::string shell_quote(const std::string& word);

struct RemoteHost {
  std::string name, address;  // stand for {host} and {address}
};

// The command line to run here so that `argv` runs on `host`. INVALID_ARGUMENT names
// launch.remote_shell.
absl::StatusOr<std::vector<std::string>> remote_command(const std::string& remote_shell,
                                                        const RemoteHost& host,
                                                        const std::vector<std::string>& argv);

}  // namespace brigade::launcher
