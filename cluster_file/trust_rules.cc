#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cluster_file/cluster_layout.h"
#include "cluster_file/rules.h"

namespace brigade::cluster_file {
namespace {

// What launch.remote_shell may hold in braces; the first two say where.
constexpr const char* kShellWords[] = {"{host}", "{address}", "{command}"};

// `key` is set and `other` is not.
void check_pair(const RuleContext& c, const std::string& key, const std::string& value,
                const std::string& other, const std::string& other_value) {
  if (!value.empty() && other_value.empty()) {
    c.fault("security.tls." + key, absl::StrCat("needs security.tls.", other, " beside it"));
  }
}

void check_tls(const RuleContext& c) {
  const v1::Tls& tls = c.file.security().tls();
  check_pair(c, "cert", tls.cert(), "key", tls.key());
  check_pair(c, "key", tls.key(), "cert", tls.cert());
  check_pair(c, "peer_cert", tls.peer_cert(), "peer_key", tls.peer_key());
  check_pair(c, "peer_key", tls.peer_key(), "peer_cert", tls.peer_cert());
  check_pair(c, "client_ca", tls.client_ca(), "cert", tls.cert());
  check_pair(c, "ca", tls.ca(), "cert", tls.cert());
  if (!has_joiners(c.file)) return;
  if (!tls.cert().empty() && tls.ca().empty()) {
    c.fault("security.tls.cert",
            "needs security.tls.ca beside it, by which workers know the coordinator");
  }
  if (!tls.client_ca().empty() && tls.peer_cert().empty()) {
    c.fault("security.tls.client_ca",
            "asks workers for a certificate; set security.tls.peer_cert and peer_key");
  }
}

std::vector<std::pair<std::string, std::string>> tokens_of(const v1::ClusterFile& file) {
  const v1::Tokens& tokens = file.security().tokens();
  std::vector<std::pair<std::string, std::string>> set;
  for (const auto& [role, path] :
       {std::pair{"client", tokens.client()}, std::pair{"operator", tokens.operator_()},
        std::pair{"worker", tokens.worker()}, std::pair{"draft", tokens.draft()}}) {
    if (!path.empty()) set.emplace_back(role, path);
  }
  return set;
}

void check_tokens_differ(const RuleContext& c) {
  std::map<std::string, std::string> role_of;
  for (const auto& [role, path] : tokens_of(c.file)) {
    const auto [other, is_new] = role_of.emplace(path, role);
    if (is_new) continue;
    c.fault("security.tokens." + role,
            absl::StrCat("is the same file as security.tokens.", other->second,
                         "; every role needs a token of its own"));
  }
}

// The key that made the coordinator listen where it does.
std::string listen_key(const RuleContext& c) {
  const std::string host = c.file.coordinator().host();
  for (int i = 0; i < c.file.hosts_size(); ++i) {
    if (c.file.hosts(i).name() == host &&
        c.file.hosts(i).address() == c.file.coordinator().listen_address()) {
      return absl::StrCat("hosts[", i, "].address");
    }
  }
  return "coordinator.listen_address";
}

void check_open_ports(const RuleContext& c) {
  const v1::Security& security = c.file.security();
  const std::string& listen = c.file.coordinator().listen_address();
  if (is_loopback_address(listen)) return;
  const bool tls = !security.tls().cert().empty();
  if (security.insecure()) {
    if (!tls && !tokens_of(c.file).empty()) {
      c.fault("security.tokens",
              absl::StrCat("would travel in clear over ", listen, "; add security.tls"));
    } else if (!tls) {
      c.notes->push_back(absl::StrCat("security.insecure: anybody who reaches ", listen,
                                      " may use and change the cluster"));
    }
    return;
  }
  std::vector<std::string> missing;
  if (!tls) missing.emplace_back("security.tls.cert and key");
  if (security.tokens().client().empty() && security.tls().client_ca().empty()) {
    missing.emplace_back("security.tokens.client (or security.tls.client_ca)");
  }
  if (!c.file.workers().empty() && security.tokens().worker().empty()) {
    missing.emplace_back("security.tokens.worker");
  }
  if (!c.file.drafts().empty() && security.tokens().draft().empty()) {
    missing.emplace_back("security.tokens.draft");
  }
  if (missing.empty()) return;
  c.fault(listen_key(c),
          absl::StrCat(listen, " is not a loopback address; it needs ",
                       absl::StrJoin(missing, ", "), ", or the words security.insecure: true"));
}

void check_data_plane(const RuleContext& c) {
  std::set<std::string> used;
  for (const v1::WorkerRole& worker : c.file.workers()) used.insert(worker.host());
  if (used.empty()) return;
  used.insert(c.file.coordinator().host());
  const bool trusted = c.file.security().data_plane() == v1::DATA_PLANE_TRUSTED_NETWORK;
  for (int i = 0; i < c.file.hosts_size(); ++i) {
    const v1::Host& host = c.file.hosts(i);
    if (used.count(host.name()) == 0 || is_loopback_address(host.address())) continue;
    if (!trusted) {
      c.fault(absl::StrCat("hosts[", i, "].address"),
              absl::StrCat(host.address(),
                           " is not a loopback address, and activations travel unencrypted; if "
                           "nobody else is on that network set security.data_plane: "
                           "trusted_network"));
    }
    if (is_loopback_address(c.file.coordinator().listen_address())) {
      c.fault("coordinator.listen_address",
              absl::StrCat(c.file.coordinator().listen_address(), " is not reached from host ",
                           host.name()));
    }
    return;
  }
}

// Draft workers take no part in the data plane, but they must reach the control port.
void check_draft_hosts(const RuleContext& c) {
  const v1::CoordinatorRole& coordinator = c.file.coordinator();
  if (!is_loopback_address(coordinator.listen_address())) return;
  for (int i = 0; i < c.file.drafts_size(); ++i) {
    const v1::Host* host = find_host(c.file, c.file.drafts(i).host());
    if (host == nullptr || is_loopback_address(host->address())) continue;
    c.fault(absl::StrCat("drafts[", i, "].host"),
            absl::StrCat("host ", host->name(), " does not reach ", coordinator.listen_address(),
                         ", where the coordinator listens"));
  }
}

void check_remote_shell(const RuleContext& c) {
  std::set<std::string> used = joining_hosts(c.file);
  used.insert(c.file.coordinator().host());
  std::string shell = c.file.launch().remote_shell();
  const bool has_host =
      absl::StrContains(shell, kShellWords[0]) || absl::StrContains(shell, kShellWords[1]);
  for (const char* word : kShellWords) shell = absl::StrReplaceAll(shell, {{word, ""}});
  if (shell.find_first_of("{}") != std::string::npos) {
    c.fault("launch.remote_shell",
            "has another word in braces than {host}, {address} and {command}");
  } else if (used.size() > 1 && !has_host) {
    c.fault("launch.remote_shell",
            absl::StrCat("has no {host}, but the roles are on ", used.size(), " hosts"));
  }
}

}  // namespace

void check_trust(const RuleContext& c) {
  check_tls(c);
  check_tokens_differ(c);
  check_open_ports(c);
  check_data_plane(c);
  check_draft_hosts(c);
  check_remote_shell(c);
}

}  // namespace brigade::cluster_file
