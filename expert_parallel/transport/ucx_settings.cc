#include "expert_parallel/transport/ucx_settings.h"

#include "absl/strings/str_cat.h"

namespace brigade::expert_parallel {

std::vector<std::pair<std::string, std::string>> ucx_settings(const UcxOptions& options) {
  const bool shared = options.shared_memory && options.transports.empty();
  const std::string ours = shared ? "posix,self,tcp" : "tcp,self";
  std::vector<std::pair<std::string, std::string>> settings = {
      {"TLS", options.transports.empty() ? ours : options.transports},
      // Rendezvous costs two more trips and pays only above the size of our messages.
      {"RNDV_THRESH", "inf"},
      // A cut link is seen by the kernel's keepalive, if UCX's own probes do not keep the line
      // busy.
      {"KEEPIDLE", "2s"},
      {"KEEPINTVL", "1s"},
      {"KEEPCNT", "3"},
  };
  if (!options.net_devices.empty()) settings.emplace_back("NET_DEVICES", options.net_devices);
  if (!shared) {
    settings.emplace_back("KEEPALIVE_INTERVAL", "inf");
    return settings;
  }
  // Peer error handling switches posix off unless asked for. With the default segments a sender
  // that faces a full queue spins; 32 KiB segments end that, larger ones crash.
  settings.emplace_back("MM_ERROR_HANDLING", "y");
  settings.emplace_back("MM_SEG_SIZE", "32K");
  settings.emplace_back("MM_FIFO_SIZE", "256");
  // Over shared memory only UCX's keepalive sees a dead peer.
  const int64_t keepalive_ms = absl::ToInt64Milliseconds(options.transport.keepalive);
  settings.emplace_back("KEEPALIVE_INTERVAL", absl::StrCat(keepalive_ms, "ms"));
  return settings;
}

}  // namespace brigade::expert_parallel
