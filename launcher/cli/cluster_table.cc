#include "launcher/cli/cluster_table.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace brigade::launcher {
namespace {

constexpr int64_t kCoordinator = -1, kNobody = -2;

std::string holder_name(int64_t rank) {
  if (rank == kCoordinator) return "coordinator";
  if (rank == kNobody) return "nobody";
  return absl::StrCat("rank ", rank);
}

// Ascending ids as "0-3,7".
std::string compact(const std::vector<int64_t>& ids) {
  std::string text;
  for (size_t first = 0; first < ids.size();) {
    size_t last = first;
    while (last + 1 < ids.size() && ids[last + 1] == ids[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", ids[first]);
    if (last > first) absl::StrAppend(&text, "-", ids[last]);
    first = last + 1;
  }
  return text;
}

std::string holders_of(const v1::LayerHolders& layer) {
  std::map<int64_t, std::vector<int64_t>> experts;
  for (int expert = 0; expert < layer.rank_size(); ++expert) {
    experts[layer.rank(expert)].push_back(expert);
  }
  std::string text;
  for (const auto& [rank, ids] : experts) {
    absl::StrAppend(&text, text.empty() ? "" : "   ", holder_name(rank), ": ", compact(ids));
  }
  return text;
}

std::string worker_line(const v1::Worker& worker, int64_t rows_of_all) {
  const double share = rows_of_all == 0 ? 0 : 100.0 * worker.rows_sent() / rows_of_all;
  std::string line = absl::StrFormat(
      "  %4d  %-16s %-8s %7d %8.1f MB %12d (%4.1f %%)  %s, %s", worker.rank(), worker.worker_id(),
      worker.state(), worker.experts(), static_cast<double>(worker.expert_bytes()) / 1e6,
      worker.rows_sent(), share, worker.host(), worker.device());
  if (worker.reserved_expert_bytes() > worker.expert_bytes()) {
    absl::StrAppendFormat(&line, "; has taken %.1f MB for experts",
                          static_cast<double>(worker.reserved_expert_bytes()) / 1e6);
  }
  if (!worker.last_loss().empty()) {
    absl::StrAppend(&line, worker.state() == "lost" ? "; " : "; lost before: ", worker.last_loss());
  }
  if (worker.has_max_experts() && worker.state() != "lost" &&
      worker.experts() >= worker.max_experts()) {
    absl::StrAppend(&line, "; its memory takes no more than ", worker.max_experts(), " experts");
  }
  if (!worker.load_failure().empty()) absl::StrAppend(&line, "; ", worker.load_failure());
  return line + "\n";
}

}  // namespace

std::string cluster_table(const v1::Cluster& cluster) {
  std::string text = absl::StrFormat(
      "\nworkers: %d expected, %d joins, %d losses, %d refused; %s\n", cluster.expected_workers(),
      cluster.workers_joined(), cluster.workers_lost(), cluster.workers_refused(),
      cluster.started() ? absl::StrCat("placement ", cluster.placement_version())
                        : std::string("experts not handed out yet"));
  absl::StrAppend(&text, "  rank  worker           state    experts       bytes         rows\n");
  int64_t rows = 0;
  for (const v1::Worker& worker : cluster.workers()) rows += worker.rows_sent();
  for (const v1::Worker& worker : cluster.workers())
    absl::StrAppend(&text, worker_line(worker, rows));
  if (cluster.coordinator_expert_bytes() > 0) {
    absl::StrAppendFormat(&text, "  the coordinator itself holds %.1f MB of experts\n",
                          static_cast<double>(cluster.coordinator_expert_bytes()) / 1e6);
  }
  absl::StrAppendFormat(&text,
                        "  %d exchanges, %d rows replayed, %d parked, %d late answers, %d "
                        "frames refused\n",
                        cluster.exchanges(), cluster.replayed_rows(), cluster.parked_rows(),
                        cluster.late_answers(), cluster.refused_frames());
  if (cluster.layers().empty()) return text;
  absl::StrAppend(&text, "\nwhere experts live\n");
  // Layers with equal holders share a line.
  for (int first = 0; first < cluster.layers_size();) {
    const std::string holders = holders_of(cluster.layers(first));
    int last = first;
    while (last + 1 < cluster.layers_size() && holders_of(cluster.layers(last + 1)) == holders) {
      ++last;
    }
    const std::string name =
        last > first ? absl::StrCat("layer ", first, "-", last) : absl::StrCat("layer ", first);
    absl::StrAppendFormat(&text, "%-12s %s\n", name, holders);
    first = last + 1;
  }
  return text;
}

}  // namespace brigade::launcher
