#include "launcher/supervisor/remote_command.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/core/status.h"

namespace brigade::launcher {
namespace {

constexpr const char* kHost = "{host}";
constexpr const char* kAddress = "{address}";
constexpr const char* kCommand = "{command}";
constexpr std::array<std::string_view, 4> kSshLike = {"ssh", "autossh", "rsh", "dbclient"};
// Characters that no POSIX shell gives a meaning to.
constexpr const char* kPlain =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+";

bool is_ssh_like(const std::string& program) {
  const std::string_view base = std::string_view(program).substr(program.rfind('/') + 1);
  return std::find(kSshLike.begin(), kSshLike.end(), base) != kSshLike.end();
}

// `exec`: the remote shell becomes the program, so that a signal or the end of stdin reaches it.
std::string shell_command(const std::vector<std::string>& argv) {
  std::string text = "exec";
  for (const std::string& word : argv) absl::StrAppend(&text, " ", shell_quote(word));
  return text;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> split_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool escapes = c == '\\' && quote != '\'' && i + 1 < text.size() &&
                         (quote == 0 || std::strchr("\"\\$`", text[i + 1]) != nullptr);
    if (escapes) {
      word += text[++i];
      in_word = true;
    } else if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_word = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (quote != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a quote is not closed in: ", text));
  }
  if (in_word) words.push_back(std::move(word));
  return words;
}

std::string shell_quote(const std::string& word) {
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

absl::StatusOr<std::vector<std::string>> remote_command(const std::string& remote_shell,
                                                        const RemoteHost& host,
                                                        const std::vector<std::string>& argv) {
  auto words = split_words(remote_shell);
  if (!words.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("launch.remote_shell: ", words.status().message()));
  }
  if (words->empty()) return absl::InvalidArgumentError("launch.remote_shell has no words");
  const std::string command = shell_command(argv);
  bool placed = false;
  for (std::string& word : *words) {
    placed |= word.find(kCommand) != std::string::npos;
    word = absl::StrReplaceAll(word,
                               {{kHost, host.name}, {kAddress, host.address}, {kCommand, command}});
  }
  if (placed) return words;
  if (is_ssh_like(words->front())) {
    words->push_back(command);
  } else {
    words->insert(words->end(), argv.begin(), argv.end());
  }
  return words;
}

}  // namespace brigade::launcher
