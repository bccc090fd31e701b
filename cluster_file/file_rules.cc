#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster_file/cluster_layout.h"
#include "cluster_file/rules.h"

namespace brigade::cluster_file {
namespace {

constexpr size_t kMinTokenBytes = 16;

class FileChecks {
 public:
  explicit FileChecks(const RuleContext& context) : c_(context) {}

  void model() {
    const std::string& path = c_.file.model().path();
    if (!c_.surroundings->is_folder(path)) {
      c_.fault("model.path", absl::StrCat("there is no folder ", path));
    }
  }

  void draft_model(int index) {
    const std::string& path = c_.file.drafts(index).model();
    if (!c_.surroundings->is_folder(path)) {
      c_.fault(absl::StrCat("drafts[", index, "].model"),
               absl::StrCat("there is no folder ", path));
    }
  }

  void file(const std::string& key, const std::string& path) { read(key, path); }

  // Of at least 16 bytes, and none twice.
  void token(const std::string& role, const std::string& path) {
    const std::string key = "security.tokens." + role;
    std::optional<std::string> text = read(key, path);
    if (!text) return;
    while (!text->empty() && (text->back() == '\n' || text->back() == '\r')) text->pop_back();
    if (text->size() < kMinTokenBytes) {
      return c_.fault(key, absl::StrCat("the token in ", path, " has ", text->size(),
                                        " bytes, needs at least ", kMinTokenBytes));
    }
    const auto [other, is_new] = tokens_.emplace(*text, role);
    if (is_new || other->second == role || path_of(other->second) == path) return;
    c_.fault(key, absl::StrCat(path, " has the same token as security.tokens.", other->second,
                               "; every role needs one of its own"));
  }

 private:
  std::optional<std::string> read(const std::string& key, const std::string& path) {
    if (path.empty() || !seen_.insert(key).second) return std::nullopt;
    std::optional<std::string> text = c_.surroundings->read_file(path);
    if (!text) {
      c_.fault(key, absl::StrCat("cannot read ", path));
    } else if (text->empty()) {
      c_.fault(key, absl::StrCat(path, " is empty"));
      text.reset();
    }
    return text;
  }

  // Two roles that name one file are a fault of their own.
  std::string path_of(const std::string& role) const {
    const v1::Tokens& tokens = c_.file.security().tokens();
    return role == "client"     ? tokens.client()
           : role == "operator" ? tokens.operator_()
           : role == "worker"   ? tokens.worker()
                                : tokens.draft();
  }

  const RuleContext& c_;
  std::set<std::string> seen_;
  std::map<std::string, std::string> tokens_;  // content to role
};

void check_coordinator_files(const RuleContext& c, FileChecks* checks) {
  const v1::Tls& tls = c.file.security().tls();
  const v1::Tokens& tokens = c.file.security().tokens();
  checks->file("security.tls.cert", tls.cert());
  checks->file("security.tls.key", tls.key());
  checks->file("security.tls.client_ca", tls.client_ca());
  checks->token("client", tokens.client());
  checks->token("operator", tokens.operator_());
  checks->token("worker", tokens.worker());
  checks->token("draft", tokens.draft());
}

// What everybody shows who dials.
void check_peer_files(const RuleContext& c, FileChecks* checks) {
  const v1::Tls& tls = c.file.security().tls();
  checks->file("security.tls.ca", tls.ca());
  checks->file("security.tls.peer_cert", tls.peer_cert());
  checks->file("security.tls.peer_key", tls.peer_key());
}

void check_worker_files(const RuleContext& c, FileChecks* checks) {
  check_peer_files(c, checks);
  checks->token("worker", c.file.security().tokens().worker());
}

void check_draft_files(const RuleContext& c, FileChecks* checks) {
  for (int i = 0; i < c.file.drafts_size(); ++i) {
    const v1::Host* host = find_host(c.file, c.file.drafts(i).host());
    if (host == nullptr || !c.surroundings->is_here(host->address())) continue;
    checks->draft_model(i);
    check_peer_files(c, checks);
    checks->token("draft", c.file.security().tokens().draft());
  }
}

void check_modules(const RuleContext& c, FileChecks* checks) {
  for (int i = 0; i < c.file.hosts_size(); ++i) {
    const v1::Host& host = c.file.hosts(i);
    if (!c.surroundings->is_here(host.address())) continue;
    checks->file(absl::StrCat("hosts[", i, "].cuda_module"), host.cuda_module());
  }
}

}  // namespace

void check_files(const RuleContext& c) {
  if (c.surroundings == nullptr) return;
  std::set<std::string> worker_hosts;
  for (const v1::WorkerRole& worker : c.file.workers()) worker_hosts.insert(worker.host());
  bool coordinator_here = false, worker_here = false;
  std::vector<std::string> elsewhere;
  for (const v1::Host& host : c.file.hosts()) {
    const bool coordinates = host.name() == c.file.coordinator().host();
    const bool works = worker_hosts.count(host.name()) > 0;
    if (!coordinates && !works) continue;
    if (!c.surroundings->is_here(host.address())) {
      elsewhere.push_back(host.name());
      continue;
    }
    coordinator_here = coordinator_here || coordinates;
    worker_here = worker_here || works;
  }
  FileChecks checks(c);
  if (coordinator_here || worker_here) checks.model();
  if (coordinator_here) check_coordinator_files(c, &checks);
  if (worker_here) check_worker_files(c, &checks);
  check_draft_files(c, &checks);
  check_modules(c, &checks);
  if (!elsewhere.empty()) {
    c.notes->push_back(
        absl::StrCat("files on other hosts were not looked at: ", absl::StrJoin(elsewhere, ", ")));
  }
}

}  // namespace brigade::cluster_file
