#include "runtime/api/metrics.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "prometheus/collectable.h"
#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "runtime/api/metrics_door.h"
#include "runtime/api/server_credentials.h"

namespace brigade::runtime {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets kFirstTokenSeconds = {.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60};
const Buckets kTokenGapSeconds = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5};
const Buckets kCallSeconds = {.01, .05, .1, .5, 1, 5, 10, 30, 60, 300};

MetricFamily single(const char* name, const char* help, MetricType type, double value) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family.metric.push_back(std::move(metric));
  return family;
}

// Busiest expert over the mean, per layer: 1 is even. 0 while nothing was routed.
MetricFamily balance(const std::vector<std::vector<int64_t>>& expert_rows) {
  MetricFamily family;
  family.name = "brigade_expert_balance";
  family.help = "Rows of the busiest expert over the mean, since start; 1 is even";
  family.type = MetricType::Gauge;
  for (size_t layer = 0; layer < expert_rows.size(); ++layer) {
    int64_t sum = 0, most = 0;
    for (const int64_t rows : expert_rows[layer]) {
      sum += rows;
      most = std::max(most, rows);
    }
    ClientMetric metric;
    metric.label.push_back({"moe_layer", std::to_string(layer)});
    metric.gauge.value = sum == 0 ? 0
                                  : static_cast<double>(most) *
                                        static_cast<double>(expert_rows[layer].size()) /
                                        static_cast<double>(sum);
    family.metric.push_back(std::move(metric));
  }
  return family;
}

double expert_rows_total(const GeneratorStatus& status) {
  int64_t sum = 0;
  for (const auto& layer : status.expert_rows) {
    for (const int64_t rows : layer) sum += rows;
  }
  return static_cast<double>(sum);
}

// How the cluster of workers does.
void add_cluster(const ClusterStatus& status, std::vector<MetricFamily>* families) {
  const auto add = [families](MetricType type, const char* name, const char* help, double value) {
    families->push_back(single(name, help, type, value));
  };
  const auto gauge = [&](const char* name, const char* help, double value) {
    add(MetricType::Gauge, name, help, value);
  };
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    add(MetricType::Counter, name, help, static_cast<double>(value));
  };
  gauge("brigade_workers_active", "Expert workers in use", status.active_workers);
  gauge("brigade_workers_expected", "Expert workers waited for", status.expected_workers);
  gauge("brigade_placement_version", "Changes of where experts live",
        static_cast<double>(status.placement_version));
  gauge("brigade_parked_experts", "Experts nobody holds now",
        static_cast<double>(status.parked_experts));
  gauge("brigade_coordinator_expert_bytes", "Expert bytes the coordinator holds itself",
        static_cast<double>(status.coordinator_expert_bytes));
  counter("brigade_exchanges_total", "Layers of steps sent to experts", status.exchanges);
  counter("brigade_replayed_rows_total", "Rows sent again after a loss", status.replayed_rows);
  counter("brigade_parked_rows_total", "Rows put back for want of an expert", status.parked_rows);
  counter("brigade_late_answers_total", "Answers that came too late", status.late_answers);
  counter("brigade_refused_frames_total", "Frames that were stale, damaged or strange",
          status.refused_frames);
  counter("brigade_workers_lost_total", "Losses of workers", status.workers_lost);
  counter("brigade_workers_joined_total", "Joins of workers", status.workers_joined);
  counter("brigade_workers_refused_total", "Workers that were not let in", status.workers_refused);
}

// By position in a pass, so at most kMaxDraftDepth series each.
MetricFamily by_position(const char* name, const char* help, const std::vector<int64_t>& counts) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = MetricType::Counter;
  for (size_t position = 0; position < counts.size(); ++position) {
    ClientMetric metric;
    metric.label.push_back({"position", std::to_string(position)});
    metric.counter.value = static_cast<double>(counts[position]);
    family.metric.push_back(std::move(metric));
  }
  return family;
}

void add_drafting(const DraftingStatus& status, std::vector<MetricFamily>* families) {
  const auto counter = [families](const char* name, const char* help, double value) {
    families->push_back(single(name, help, MetricType::Counter, value));
  };
  families->push_back(by_position("brigade_drafted_by_position_total",
                                  "Drafts that passes verified, by position in the pass",
                                  status.drafted_by_position));
  families->push_back(by_position("brigade_accepted_by_position_total", "Of those: committed",
                                  status.accepted_by_position));
  counter("brigade_run_ahead_drafts_total",
          "Verified drafts made by a worker that did not know the pass before",
          static_cast<double>(status.run_ahead_drafts));
  counter("brigade_early_drafts_total", "Of those: had arrived when that pass ended",
          static_cast<double>(status.early_drafts));
  counter("brigade_draft_passes_total", "Steps of a sequence that wants drafts",
          static_cast<double>(status.passes));
  counter("brigade_draft_wait_seconds_total", "Time by which getting drafts held up steps",
          status.wait_seconds);
  counter("brigade_draft_step_seconds_total", "Time of steps with a sequence that wants drafts",
          status.step_seconds);
  counter("brigade_verify_steps_total", "Steps with drafts",
          static_cast<double>(status.verify_steps));
  counter("brigade_verify_distinct_experts_total",
          "Distinct experts a layer that those steps read, summed over the steps",
          status.distinct_experts);
  counter("brigade_verify_slowest_experts_total", "The same, of the holder that read most",
          status.slowest_experts);
  families->push_back(single("brigade_draft_resting_sequences",
                             "Sequences of the last step whose drafts do not pay",
                             MetricType::Gauge, status.resting_sequences));
}

void add_draft_workers(const DraftWorkersStatus& status, std::vector<MetricFamily>* families) {
  const auto counter = [families](const char* name, const char* help, int64_t value) {
    families->push_back(single(name, help, MetricType::Counter, static_cast<double>(value)));
  };
  const auto serving = std::count_if(status.workers.begin(), status.workers.end(),
                                     [](const auto& worker) { return worker.serving; });
  int open = 0;
  for (const DraftLinkStatus& worker : status.workers) open += worker.open_sequences;
  const auto gauge = [families](const char* name, const char* help, double value) {
    families->push_back(single(name, help, MetricType::Gauge, value));
  };
  gauge("brigade_draft_workers", "Draft workers in use", static_cast<double>(serving));
  gauge("brigade_draft_sequences", "Sequences that draft workers draft for", open);
  const RemoteDraftsCounters& counters = status.counters;
  counter("brigade_draft_opened_total", "Sequences opened at draft workers", counters.opened);
  counter("brigade_draft_reopened_total", "... once more", counters.reopened);
  counter("brigade_draft_chunks_total", "Chunks of drafts that arrived", counters.chunks);
  counter("brigade_draft_stale_chunks_total", "Of those: old, or after another text",
          counters.stale);
  counter("brigade_draft_dropped_tokens_total", "Drafts in those", counters.dropped);
  counter("brigade_draft_quarantined_total", "Sequences shut out for a chunk that is wrong",
          counters.bad);
  counter("brigade_draft_nacks_total", "Refusals of draft workers", counters.refused);
  counter("brigade_draft_lost_total", "Sequences whose draft worker went", counters.lost);
}

// Reads the generator at each scrape, so that nothing has to be kept in step.
class GeneratorCollector final : public prometheus::Collectable {
 public:
  explicit GeneratorCollector(const ServingState* state) : state_(state) {}

  std::vector<MetricFamily> Collect() const override {
    const ServingState::Health health = state_->health();
    std::vector<MetricFamily> families;
    const auto gauge = [&families](const char* name, const char* help, double value) {
      families.push_back(single(name, help, MetricType::Gauge, value));
    };
    const auto counter = [&families](const char* name, const char* help, double value) {
      families.push_back(single(name, help, MetricType::Counter, value));
    };
    gauge("brigade_live", "1 while the process and its step loop work", health.live);
    gauge("brigade_ready", "1 while requests are taken", health.ready);
    if (const auto cluster = state_->cluster()) add_cluster(*cluster, &families);
    const auto generator = state_->generator();
    if (generator == nullptr) return families;
    const GeneratorStatus s = generator->status();
    gauge("brigade_waiting_requests", "Requests in the queue", s.waiting_requests);
    gauge("brigade_waiting_tokens", "Prompt tokens in the queue",
          static_cast<double>(s.waiting_tokens));
    gauge("brigade_running_sequences", "Sequences being generated", s.running_sequences);
    gauge("brigade_kv_blocks", "KV blocks there are", s.kv_blocks_total);
    gauge("brigade_kv_blocks_in_use", "KV blocks held by sequences", s.kv_blocks_in_use);
    gauge("brigade_kv_blocks_cached", "KV blocks of prefixes nobody holds now", s.kv_blocks_cached);
    counter("brigade_requests_accepted_total", "Requests let into the queue", s.requests_accepted);
    counter("brigade_requests_finished_total", "Requests answered to the end", s.requests_finished);
    counter("brigade_requests_failed_total", "Requests ended by an error", s.requests_failed);
    counter("brigade_requests_cancelled_total", "Requests whose client went", s.requests_cancelled);
    counter("brigade_requests_rejected_total", "Requests refused: no room", s.requests_rejected);
    counter("brigade_requests_expired_total", "Requests past their deadline", s.requests_expired);
    counter("brigade_steps_total", "Steps of the engine", s.steps);
    counter("brigade_prompt_tokens_total", "Prompt tokens computed", s.prompt_tokens);
    counter("brigade_generated_tokens_total", "Tokens generated", s.generated_tokens);
    counter("brigade_prefix_hit_tokens_total", "Prompt tokens found in the cache",
            s.prefix_hit_tokens);
    counter("brigade_exchange_seconds_total", "Microbatches at the experts, summed",
            s.exchange_seconds);
    counter("brigade_covered_exchange_seconds_total",
            "Of brigade_exchange_seconds_total: others were computed meanwhile",
            s.covered_exchange_seconds);
    counter("brigade_preemptions_total", "Sequences put back for lack of KV blocks", s.preemptions);
    counter("brigade_paused_for_reader_total", "Turns left out for a slow reader",
            s.paused_for_reader);
    counter("brigade_nonfinite_rows_total", "Rows of logits with NaN or Inf", s.nonfinite_rows);
    gauge("brigade_parked_sequences", "Sequences that wait for an expert nobody holds",
          s.parked_sequences);
    counter("brigade_verify_passes_total", "Steps of a sequence with drafts", s.verify_passes);
    counter("brigade_drafted_tokens_total", "Drafts that steps verified", s.drafted_tokens);
    counter("brigade_accepted_drafts_total", "Drafts that were committed", s.accepted_drafts);
    add_drafting(s.drafting, &families);
    if (const auto drafts = state_->drafts()) add_draft_workers(*drafts, &families);
    counter("brigade_parkings_total", "Times a sequence left a step for want of an expert",
            s.parkings);
    counter("brigade_expert_rows_total", "Rows routed to experts: tokens times k, per layer summed",
            expert_rows_total(s));
    families.push_back(balance(s.expert_rows));
    counter("brigade_graph_launches_total", "Segments of steps launched as graphs of a GPU",
            s.graph_launches);
    counter("brigade_graph_recordings_total", "Segments of steps recorded as graphs",
            s.graph_recordings);
    counter("brigade_graph_evictions_total", "Step shapes whose graphs made room for others",
            s.graph_evictions);
    gauge("brigade_graph_shapes", "Step shapes held as graphs", s.graph_shapes);
    return families;
  }

 private:
  const ServingState* const state_;
};

}  // namespace

struct Metrics::Parts {
  explicit Parts(const ServingState* state)
      : registry(std::make_shared<prometheus::Registry>()),
        collector(std::make_shared<GeneratorCollector>(state)),
        first_token(histogram("brigade_time_to_first_token_seconds",
                              "From a request's arrival to its first token", kFirstTokenSeconds)),
        token_gap(histogram("brigade_time_between_tokens_seconds",
                            "Between two tokens of one sequence", kTokenGapSeconds)),
        call(histogram("brigade_call_seconds", "A whole call", kCallSeconds)),
        calls(prometheus::BuildCounter()
                  .Name("brigade_calls_total")
                  .Help("Calls by the code they ended with")
                  .Register(*registry)) {}

  prometheus::Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry).Add({}, buckets);
  }

  std::shared_ptr<prometheus::Registry> registry;
  std::shared_ptr<GeneratorCollector> collector;
  prometheus::Histogram& first_token;
  prometheus::Histogram& token_gap;
  prometheus::Histogram& call;
  prometheus::Family<prometheus::Counter>& calls;
  std::unique_ptr<MetricsDoor> door;
};

Metrics::Metrics(const ServingState* state) : parts_(std::make_shared<Parts>(state)) {}
Metrics::~Metrics() = default;

void Metrics::first_token(absl::Duration since_arrival) {
  parts_->first_token.Observe(absl::ToDoubleSeconds(since_arrival));
}

void Metrics::token_gap(absl::Duration gap) {
  parts_->token_gap.Observe(absl::ToDoubleSeconds(gap));
}

void Metrics::call_ended(const absl::Status& status, absl::Duration since_arrival) {
  parts_->call.Observe(absl::ToDoubleSeconds(since_arrival));
  // At most one series a status code.
  parts_->calls.Add({{"code", std::string(absl::StatusCodeToString(status.code()))}}).Increment();
}

absl::StatusOr<int> Metrics::listen(const std::string& address, bool insecure) {
  ASSIGN_OR_RETURN(const bool loopback, is_loopback(address, "--metrics-listen"));
  if (!loopback && !insecure) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--metrics-listen ", address, " is not a loopback address: say --insecure to open it"));
  }
  ASSIGN_OR_RETURN(parts_->door, MetricsDoor::open(address));
  parts_->door->show(parts_->registry);
  parts_->door->show(parts_->collector);
  return parts_->door->port();
}

std::string Metrics::text() const {
  std::vector<MetricFamily> families = parts_->registry->Collect();
  std::vector<MetricFamily> more = parts_->collector->Collect();
  families.insert(families.end(), more.begin(), more.end());
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace brigade::runtime
