#include "runtime/api/status_to_proto.h"

#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/api/safe_text.h"

namespace brigade::runtime {
namespace {

constexpr const char* kVersion = "0.1.0";

void fill_model(const ServedModel& model, v1::Model* message) {
  message->set_name(safe_text(model.name));
  message->set_family(safe_text(model.family));
  message->set_vocab_size(model.limits.vocab_size);
  message->set_max_context(model.limits.max_context);
  message->set_layers(model.layers);
  message->set_moe_layers(model.moe_layers);
  message->set_experts(model.experts);
  message->set_experts_per_token(model.experts_per_token);
  message->set_parameters_total(model.parameters_total);
  message->set_parameters_active(model.parameters_active);
  for (const int32_t id : model.eos_tokens) message->add_eos_token_ids(id);
  message->set_has_tokenizer(model.encode != nullptr);
  message->set_device(safe_text(model.device));
  message->set_same_words(model.same_words);
}

void fill_load(const GeneratorStatus& status, v1::Load* load) {
  load->set_waiting_requests(status.waiting_requests);
  load->set_waiting_tokens(status.waiting_tokens);
  load->set_running_sequences(status.running_sequences);
  load->set_kv_blocks_total(status.kv_blocks_total);
  load->set_kv_blocks_in_use(status.kv_blocks_in_use);
  load->set_kv_blocks_cached(status.kv_blocks_cached);
  load->set_requests_accepted(status.requests_accepted);
  load->set_requests_finished(status.requests_finished);
  load->set_requests_failed(status.requests_failed);
  load->set_requests_cancelled(status.requests_cancelled);
  load->set_requests_rejected(status.requests_rejected);
  load->set_requests_expired(status.requests_expired);
  load->set_steps(status.steps);
  load->set_prompt_tokens(status.prompt_tokens);
  load->set_generated_tokens(status.generated_tokens);
  load->set_prefix_hit_tokens(status.prefix_hit_tokens);
  load->set_preemptions(status.preemptions);
  load->set_paused_for_reader(status.paused_for_reader);
  load->set_nonfinite_rows(status.nonfinite_rows);
  load->set_parked_sequences(status.parked_sequences);
  load->set_parkings(status.parkings);
  load->set_verify_passes(status.verify_passes);
  load->set_drafted_tokens(status.drafted_tokens);
  load->set_accepted_drafts(status.accepted_drafts);
  load->set_max_sequences_in_step(status.max_sequences_in_step);
  load->set_mixed_steps(status.mixed_steps);
}

void fill_drafting(const DraftingStatus& status, v1::Drafting* drafting) {
  drafting->mutable_drafted_by_position()->Add(status.drafted_by_position.begin(),
                                               status.drafted_by_position.end());
  drafting->mutable_accepted_by_position()->Add(status.accepted_by_position.begin(),
                                                status.accepted_by_position.end());
  drafting->set_run_ahead_drafts(status.run_ahead_drafts);
  drafting->set_early_drafts(status.early_drafts);
  drafting->set_passes(status.passes);
  drafting->set_draft_wait_seconds(status.wait_seconds);
  drafting->set_step_seconds(status.step_seconds);
  drafting->set_verify_steps(status.verify_steps);
  drafting->set_distinct_experts(status.distinct_experts);
  drafting->set_slowest_experts(status.slowest_experts);
  drafting->set_resting_sequences(status.resting_sequences);
}

void fill_draft_worker(const DraftLinkStatus& status, v1::DraftWorker* worker) {
  worker->set_worker_id(safe_text(status.worker_id));
  worker->set_state(status.state);
  worker->set_stream(status.stream);
  worker->set_open_sequences(status.open_sequences);
  worker->set_max_sequences(status.max_sequences);
  worker->set_round_trip_seconds(absl::ToDoubleSeconds(status.round_trip));
  worker->set_steps(status.steps);
  worker->set_rows(status.rows);
  worker->set_drafted(status.drafted);
  worker->set_chunks(status.chunks);
  worker->set_nacks(status.nacks);
  worker->set_bad_messages(status.bad_messages);
}

void fill_draft_workers(const DraftWorkersStatus& status, v1::DraftWorkers* workers) {
  for (const DraftLinkStatus& worker : status.workers) {
    fill_draft_worker(worker, workers->add_workers());
  }
  const RemoteDraftsCounters& counters = status.counters;
  workers->set_sequences_opened(counters.opened);
  workers->set_sequences_reopened(counters.reopened);
  workers->set_last_epoch(counters.last_epoch);
  workers->set_chunks(counters.chunks);
  workers->set_stale_chunks(counters.stale);
  workers->set_tokens_taken(counters.taken);
  workers->set_tokens_dropped(counters.dropped);
  workers->set_tokens_matched(counters.matched);
  workers->set_quarantined(counters.bad);
  workers->set_nacks(counters.refused);
  workers->set_lost(counters.lost);
  workers->set_last_fault(safe_text(counters.last_fault));
}

void fill_worker(const WorkerStatus& status, v1::Worker* worker) {
  worker->set_rank(status.rank);
  worker->set_worker_id(safe_text(status.worker_id));
  worker->set_state(status.state);
  worker->set_incarnation(status.incarnation);
  worker->set_host(safe_text(status.host));
  worker->set_device(safe_text(status.device));
  worker->set_experts(status.experts);
  worker->set_expert_bytes(status.expert_bytes);
  worker->set_reserved_expert_bytes(status.reserved_expert_bytes);
  worker->set_rows_sent(static_cast<int64_t>(status.rows_sent));
  worker->set_frames_sent(static_cast<int64_t>(status.frames_sent));
  worker->set_heartbeat_age_seconds(status.heartbeat_age_seconds);
  worker->set_last_loss(safe_text(status.last_loss));
  if (status.max_experts >= 0) worker->set_max_experts(status.max_experts);
  worker->set_load_failure(safe_text(status.load_failure));
}

void fill_cluster(const ClusterStatus& status, v1::Cluster* cluster) {
  cluster->set_placement_version(status.placement_version);
  cluster->set_expected_workers(status.expected_workers);
  cluster->set_started(status.started);
  cluster->set_parked_experts(status.parked_experts);
  for (const WorkerStatus& worker : status.workers) fill_worker(worker, cluster->add_workers());
  for (const std::vector<int>& layer : status.holders) {
    cluster->add_layers()->mutable_rank()->Add(layer.begin(), layer.end());
  }
  cluster->set_coordinator_expert_bytes(status.coordinator_expert_bytes);
  cluster->set_exchanges(static_cast<int64_t>(status.exchanges));
  cluster->set_replayed_rows(static_cast<int64_t>(status.replayed_rows));
  cluster->set_parked_rows(static_cast<int64_t>(status.parked_rows));
  cluster->set_late_answers(static_cast<int64_t>(status.late_answers));
  cluster->set_refused_frames(static_cast<int64_t>(status.refused_frames));
  cluster->set_workers_lost(status.workers_lost);
  cluster->set_workers_joined(status.workers_joined);
  cluster->set_workers_refused(status.workers_refused);
  for (const uint64_t rows : status.replayed_rows_by_layer) {
    cluster->add_replayed_rows_by_layer(static_cast<int64_t>(rows));
  }
  cluster->set_control_address(safe_text(status.control_address));
}

}  // namespace

v1::GetStatusResponse status_to_proto(const ServingState& state, const RateMeter::Rates& rates,
                                      size_t open_calls) {
  v1::GetStatusResponse message;
  message.set_version(kVersion);
  const ServingState::Health health = state.health();
  message.set_live(health.live);
  message.set_ready(health.ready);
  message.set_draining(health.draining);
  message.set_reason(safe_text(health.reason));
  message.set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - state.started_at()));
  if (const auto model = state.model(); model != nullptr)
    fill_model(*model, message.mutable_model());
  if (const auto cluster = state.cluster()) fill_cluster(*cluster, message.mutable_cluster());
  v1::Load* load = message.mutable_load();
  const std::shared_ptr<Generator> generator = state.generator();
  if (generator == nullptr) {
    const ServingState::Progress progress = state.progress();
    message.mutable_loading()->set_stage(safe_text(progress.stage));
    message.mutable_loading()->set_done(progress.done);
    message.mutable_loading()->set_total(progress.total);
  } else {
    const GeneratorStatus status = generator->status();
    fill_load(status, load);
    fill_drafting(status.drafting, message.mutable_drafting());
    if (const auto drafts = state.drafts()) {
      fill_draft_workers(*drafts, message.mutable_drafting()->mutable_draft_workers());
    }
    for (const std::vector<int64_t>& layer : status.expert_rows) {
      message.add_expert_rows()->mutable_rows()->Add(layer.begin(), layer.end());
    }
  }
  load->set_open_calls(static_cast<int64_t>(open_calls));
  load->set_prompt_tokens_per_second(rates.prompt);
  load->set_generated_tokens_per_second(rates.generated);
  return message;
}

}  // namespace brigade::runtime
