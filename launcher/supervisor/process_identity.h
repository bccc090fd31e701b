// A process beyond its pid: with its start time and the machine's boot, so that a recycled pid is
// never taken for it. Data and /proc; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace brigade::launcher {

struct ProcessIdentity {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // since boot
  std::string boot_id;

  std::string to_text() const;  // one line
};

// nullopt when there is no such process, or it has ended and only waits to be reaped.
std::optional<ProcessIdentity> identify(pid_t pid);

// nullopt for what to_text() did not write.
std::optional<ProcessIdentity> parse_identity(const std::string& text);

// Whether this very process still runs.
bool is_alive(const ProcessIdentity& process);

// Sends a signal to it if it is alive; with `group` to the group that it leads, if it leads one.
// False when it is gone.
bool signal_process(const ProcessIdentity& process, int number, bool group = false);

}  // namespace brigade::launcher
