#include "launcher/cli/drafting_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace brigade::launcher {
namespace {

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string acceptance(const v1::Drafting& drafting) {
  std::string text;
  for (int i = 0; i < drafting.drafted_by_position_size(); ++i) {
    const auto accepted = static_cast<double>(
        i < drafting.accepted_by_position_size() ? drafting.accepted_by_position(i) : 0);
    absl::StrAppendFormat(
        &text, "%s%d: %.0f %%", text.empty() ? "" : ", ", i + 1,
        100 * ratio(accepted, static_cast<double>(drafting.drafted_by_position(i))));
  }
  return text;
}

std::string verified(const v1::Drafting& drafting, const v1::Load& load) {
  std::string text = absl::StrFormat("  %d drafts in %d passes of %d, %d accepted, %d run-ahead",
                                     load.drafted_tokens(), load.verify_passes(), drafting.passes(),
                                     load.accepted_drafts(), drafting.run_ahead_drafts());
  if (load.drafted_tokens() > 0) {
    absl::StrAppend(&text, "\n  accepted at position ", acceptance(drafting));
  }
  const double wait = drafting.draft_wait_seconds();
  absl::StrAppendFormat(
      &text, "\n  mean depth %.2f, wait for drafts %.2f %% of step time",
      ratio(static_cast<double>(load.drafted_tokens()), static_cast<double>(drafting.passes())),
      100 * ratio(wait, wait + drafting.step_seconds()));
  if (drafting.resting_sequences() > 0) {
    absl::StrAppend(&text, ", ", drafting.resting_sequences(), " resting");
  }
  const auto steps = static_cast<double>(drafting.verify_steps());
  if (drafting.distinct_experts() > 0) {
    absl::StrAppendFormat(&text,
                          "\n  distinct experts a layer of a step with drafts: %.1f, the "
                          "busiest holder's %.1f",
                          ratio(drafting.distinct_experts(), steps),
                          ratio(drafting.slowest_experts(), steps));
  }
  return text + "\n";
}

std::string workers(const v1::DraftWorkers& workers) {
  std::string text = absl::StrFormat(
      "  draft workers: %d sequences opened, %d again; %d chunks, %d stale; %d quarantined, %d "
      "refused, %d lost\n",
      workers.sequences_opened(), workers.sequences_reopened(), workers.chunks(),
      workers.stale_chunks(), workers.quarantined(), workers.nacks(), workers.lost());
  if (!workers.last_fault().empty()) {
    absl::StrAppend(&text, "  last fault: ", workers.last_fault(), "\n");
  }
  for (const v1::DraftWorker& worker : workers.workers()) {
    absl::StrAppendFormat(&text,
                          "  %-16s %-9s stream %d, %d of %d sequences, %d chunks, %d nacks, "
                          "%.1f ms away; %d tokens in %d steps\n",
                          worker.worker_id().empty() ? "?" : worker.worker_id(), worker.state(),
                          worker.stream(), worker.open_sequences(), worker.max_sequences(),
                          worker.chunks(), worker.nacks(), 1000 * worker.round_trip_seconds(),
                          worker.drafted(), worker.steps());
  }
  return text;
}

}  // namespace

std::string drafting_table(const v1::Drafting& drafting, const v1::Load& load) {
  if (drafting.passes() == 0 && !drafting.has_draft_workers()) return "";
  std::string text = "\nspeculation\n";
  absl::StrAppend(&text, verified(drafting, load));
  if (drafting.has_draft_workers()) absl::StrAppend(&text, workers(drafting.draft_workers()));
  return text;
}

}  // namespace brigade::launcher
