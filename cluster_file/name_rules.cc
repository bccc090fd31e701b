#include <map>

#include "absl/strings/str_cat.h"
#include "cluster_file/cluster_layout.h"
#include "cluster_file/near_miss.h"
#include "cluster_file/rules.h"

namespace brigade::cluster_file {
namespace {

constexpr int64_t kMaxWorkers = 1024;

std::string worker_key(int role, const char* key) {
  return absl::StrCat("workers[", role, "].", key);
}

void check_hosts(const RuleContext& c) {
  std::map<std::string, int> by_name;
  for (int i = 0; i < c.file.hosts_size(); ++i) {
    const v1::Host& host = c.file.hosts(i);
    if (!by_name.emplace(host.name(), i).second) {
      c.fault(absl::StrCat("hosts[", i, "].name"),
              absl::StrCat("there are two hosts \"", host.name(), "\""));
    }
    if (is_wildcard_address(host.address())) {
      c.fault(absl::StrCat("hosts[", i, "].address"),
              absl::StrCat(host.address(),
                           " cannot be dialled; write the address that the others "
                           "reach the host by"));
    }
  }
}

bool check_host_of_role(const RuleContext& c, const std::string& key, const std::string& host) {
  if (find_host(c.file, host) != nullptr) return true;
  std::vector<std::string> known;
  for (const v1::Host& each : c.file.hosts()) known.push_back(each.name());
  c.fault(key, absl::StrCat("there is no host \"", host, "\"", hint(host, known)));
  return false;
}

// Before anything is written out.
bool check_worker_count(const RuleContext& c) {
  int64_t sum = 0;
  for (int i = 0; i < c.file.workers_size(); ++i) {
    sum += c.file.workers(i).count();
    if (sum <= kMaxWorkers) continue;
    c.fault(absl::StrCat("workers[", i, "]"),
            absl::StrCat("makes more than ", kMaxWorkers, " workers"));
    return false;
  }
  return true;
}

void check_worker_names(const RuleContext& c) {
  std::map<std::string, int> by_name;
  for (const WorkerProcess& worker : expanded_workers(c.file)) {
    const auto [other, is_new] = by_name.emplace(worker.name, worker.role);
    if (is_new) continue;
    c.fault(worker_key(worker.role, "name"),
            absl::StrCat("there are two workers \"", worker.name, "\"; the first is workers[",
                         other->second, "]"));
    return;  // the rest of a count would say the same
  }
  std::map<std::string, int> drafts;
  for (int i = 0; i < c.file.drafts_size(); ++i) {
    const std::string& name = c.file.drafts(i).name();
    const auto worker = by_name.find(name);
    const auto [other, is_new] = drafts.emplace(name, i);
    if (worker == by_name.end() && is_new) continue;
    c.fault(absl::StrCat("drafts[", i, "].name"),
            absl::StrCat("there are two workers \"", name, "\"; the first is ",
                         is_new ? "workers[" : "drafts[", is_new ? worker->second : other->second,
                         "]"));
  }
}

}  // namespace

bool check_names(const RuleContext& c) {
  check_hosts(c);
  bool all_there = check_host_of_role(c, "coordinator.host", c.file.coordinator().host());
  for (int i = 0; i < c.file.workers_size(); ++i) {
    if (!check_host_of_role(c, worker_key(i, "host"), c.file.workers(i).host())) all_there = false;
  }
  for (int i = 0; i < c.file.drafts_size(); ++i) {
    const std::string key = absl::StrCat("drafts[", i, "].host");
    if (!check_host_of_role(c, key, c.file.drafts(i).host())) all_there = false;
  }
  if (!check_worker_count(c)) return false;
  check_worker_names(c);
  check_devices(c);
  return all_there;
}

void check_numbers(const RuleContext& c) {
  const v1::CoordinatorRole& coordinator = c.file.coordinator();
  const std::pair<const char*, int64_t> ports[] = {{"port", coordinator.port()},
                                                   {"control_port", coordinator.control_port()},
                                                   {"metrics_port", coordinator.metrics_port()}};
  for (size_t i = 0; i < std::size(ports); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (ports[i].second == 0 || ports[i].second != ports[j].second) continue;
      // At the one that the file sets: the other is a default perhaps.
      const Place at_i = c.places.of(absl::StrCat("coordinator.", ports[i].first));
      const Place at_j = c.places.of(absl::StrCat("coordinator.", ports[j].first));
      const bool later_is_set = at_i.line >= at_j.line;
      c.fault(
          absl::StrCat("coordinator.", ports[later_is_set ? i : j].first),
          absl::StrCat("is ", ports[i].second, ", and so is ", ports[later_is_set ? j : i].first));
    }
  }
  for (int i = 0; i < c.file.workers_size() && coordinator.control_port() == 0; ++i) {
    if (c.file.workers(i).host() == coordinator.host()) continue;
    c.fault("coordinator.control_port", absl::StrCat("is 0 (any free one), but workers[", i,
                                                     "] is on another host and must know "
                                                     "the port to dial"));
    break;
  }
  for (int i = 0; i < c.file.drafts_size() && coordinator.control_port() == 0; ++i) {
    if (c.file.drafts(i).host() == coordinator.host()) continue;
    c.fault("coordinator.control_port", absl::StrCat("is 0 (any free one), but drafts[", i,
                                                     "] is on another host and must know "
                                                     "the port to dial"));
    break;
  }
  const v1::Timeouts& timeouts = c.file.timeouts();
  if (2 * to_duration(timeouts.heartbeat()) > to_duration(timeouts.lost_after())) {
    c.fault("timeouts.heartbeat", "must be at most half of lost_after, or a late one is a loss");
  }
  const v1::Restart& restart = c.file.launch().restart();
  if (to_duration(restart.first_delay()) > to_duration(restart.longest_delay())) {
    c.fault("launch.restart.first_delay", "is longer than longest_delay");
  }
}

}  // namespace brigade::cluster_file
