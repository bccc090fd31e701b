// Drives a scheduler the way the engine does, with a clock that tests move, readers that tests slow
// down, and a shadow KV in place of a model. The token after a prefix is a pure function of it, so
// the bed notices when preemption or sharing changes an answer.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/scheduler/admission.h"
#include "runtime/scheduler/scheduler.h"
#include "tests/support/shadow_kv.h"

namespace brigade::tests {

struct BedConfig {
  runtime::SchedulerConfig scheduler;
  int blocks = 50;
  int block_size = 16;
  int max_waiting_requests = 1000;
  int64_t max_waiting_tokens = 1 << 20;
  size_t stream_capacity = 8;
};

struct BedCall {
  std::vector<int32_t> prompt;
  int max_tokens = 1;
  int sequences = 1;
  absl::Duration deadline = absl::InfiniteDuration();
  std::string salt;
  bool use_prefix_cache = true;
};

// One request and its reader.
struct BedRequest : runtime::ScheduledRequest {
  int index = 0;
  BedCall call;
  runtime::AdmissionTicket ticket;
  std::vector<std::unique_ptr<runtime::ScheduledSequence>> owned;
  std::vector<std::vector<int32_t>> sent;  // per sequence: tokens pushed so far
  std::vector<std::vector<int64_t>> sent_at_step;
  std::vector<int> finish_order;
  int unread = 0;     // events in the stream
  bool reads = true;  // false: the reader has stopped
  int ended = 0;      // sequences
  bool answered = false;
  absl::Status end;  // OK: complete
};

class SchedulerBed {
 public:
  explicit SchedulerBed(const BedConfig& config);

  absl::StatusOr<BedRequest*> submit(const BedCall& call);
  void cancel(BedRequest* request, const absl::Status& why = absl::CancelledError("cancelled"));
  // Expiry, admission, a step planned for every idle microbatch, then the oldest one in flight
  // ends. Returns the rows that were computed.
  int step();
  // Steps until every request has its answer; false when `most_steps` did not do.
  bool run(int most_steps);
  void advance_clock(absl::Duration by) { now_ += by; }
  // Which slices of a step lack an expert; none at first.
  std::function<bool(const runtime::StepSlice&)> parks;

  // Breaches seen so far: KV reads, changed or repeated tokens, stream bounds. Empty: none.
  const std::string& problem() const { return problem_; }
  // Blocks, queues and gauges back at the start.
  std::string leak() const;
  // Where every unanswered sequence stands, for failure messages.
  std::string describe() const;
  runtime::Scheduler& scheduler() { return scheduler_; }
  runtime::KvBlocks& blocks() { return blocks_; }
  const runtime::Admission& admission() const { return admission_; }
  absl::Time now() const { return now_; }
  int64_t steps() const { return steps_; }
  const std::vector<std::unique_ptr<BedRequest>>& requests() const { return requests_; }
  const runtime::StepPlan& last_plan() const { return last_plan_; }

  // The token that follows a prefix in every bed.
  static int32_t next_token(std::span<const int32_t> tokens);
  static std::vector<int32_t> prompt(int seed, int length);

 private:
  void answer_expired();
  void refresh_rooms();
  void plan_idle();
  void write_rows(const runtime::StepPlan& plan);
  void compute(runtime::StepPlan* plan);
  void take_token(BedRequest* request, runtime::ScheduledSequence* sequence, int32_t token);
  void end_sequence(BedRequest* request, runtime::ScheduledSequence* sequence);
  void end_request(BedRequest* request, const absl::Status& why);
  void collect(BedRequest* request);
  void report(const std::string& problem);

  const BedConfig config_;
  runtime::KvBlocks blocks_;
  runtime::Scheduler scheduler_;
  runtime::Admission admission_;
  ShadowKv kv_;
  std::vector<std::unique_ptr<BedRequest>> requests_;
  std::vector<runtime::StepPlan> plans_;  // one a microbatch
  std::deque<size_t> in_flight_;          // microbatches, oldest first
  runtime::StepPlan last_plan_;
  absl::Time now_ = absl::UnixEpoch();
  int64_t steps_ = 0;
  std::string problem_;
};

// What a complete request must have been sent.
std::vector<int32_t> expected_tokens(const BedCall& call, int sample);
void expect_complete(const BedRequest& request);
// No breach so far and nothing left behind.
void expect_clean(const SchedulerBed& bed);

}  // namespace brigade::tests
