#include "launcher/supervisor/process_identity.h"

#include <csignal>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace brigade::launcher {
namespace {

std::string boot_id() {
  static const std::string id = [] {
    std::string text;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
    return text.empty() ? std::string("unknown") : text;
  }();
  return id;
}

}  // namespace

std::string ProcessIdentity::to_text() const {
  return absl::StrCat(pid, " ", start_ticks, " ", boot_id, "\n");
}

std::optional<ProcessIdentity> identify(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  // The program's name, in parentheses, may hold anything: fields are counted from the last ")".
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  char state = 0;
  fields >> state;
  if (state == 'Z' || state == 'X') return std::nullopt;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  ProcessIdentity identity = {.pid = pid, .start_ticks = 0, .boot_id = boot_id()};
  if (!(fields >> identity.start_ticks)) return std::nullopt;  // field 22 of proc(5)
  return identity;
}

std::optional<ProcessIdentity> parse_identity(const std::string& text) {
  std::istringstream fields(text);
  ProcessIdentity identity;
  if (!(fields >> identity.pid >> identity.start_ticks >> identity.boot_id)) return std::nullopt;
  if (identity.pid <= 1) return std::nullopt;
  return identity;
}

bool is_alive(const ProcessIdentity& process) {
  const auto now = identify(process.pid);
  return now && now->start_ticks == process.start_ticks && now->boot_id == process.boot_id;
}

bool signal_process(const ProcessIdentity& process, int number, bool group) {
  if (!is_alive(process)) return false;
  if (group && kill(-process.pid, number) == 0) return true;
  return kill(process.pid, number) == 0;
}

}  // namespace brigade::launcher
