// How many drafts of each sequence the next pass verifies: the depths that give the batch the most
// tokens per second by what was measured of acceptance and cost. Depth 0 for all is plain decoding,
// so speculation turns itself off when rows get dear (a full machine, experts that many rows wake)
// or drafts get bad, and a small budget of time for probes finds out when that has changed. Pure:
// no clock, no thread; memory is planned at construction. Step thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/speculative/step_cost.h"
#include "runtime/speculative/survival.h"

namespace brigade::runtime {

enum class DepthMode { kOff, kFixed, kAuto };

struct DepthOptions {
  int max_depth = 8;
  int max_sequences = 64;
  int max_rows = 256;
  double hysteresis = 0.005;   // a better level must be better by this share
  double probe_share = 0.005;  // of the time, half of it for the next depth, half for others
};

// One decoding sequence of the next step.
struct DepthAsk {
  DepthMode mode = DepthMode::kAuto;
  int fixed = 0;                 // with kFixed
  int available = 0;             // drafts there are; known before any is looked at
  Survival* survival = nullptr;  // the sequence's own
  // Replaced by how many drafts are worth having for the step after this one; 0: its drafter rests.
  int* want = nullptr;
};

// What the last choice was made of, for metrics.
struct DepthDecision {
  int level = 0;  // the deepest automatic depth allowed
  int draft_rows = 0;
  double tokens = 0;   // expected of the step, one for each sequence included
  double seconds = 0;  // expected
  double plain_seconds = 0;
  bool probe = false;
};

class DepthControl {
 public:
  explicit DepthControl(const DepthOptions& options);

  // depths[i] for asks[i]. `other_rows`: prefill rows of the step. `spare_rows`: rows the step can
  // take beyond those and one for each ask.
  void choose(std::span<const DepthAsk> asks, int other_rows, int spare_rows,
              std::span<int> depths);

  // The same for a sequence that has just come.
  int first_want(DepthMode mode, int fixed) const;

  // A pass tested `tested` drafts of one sequence.
  void record(Survival* sequence, int tested, int accepted);
  StepCost& cost() { return cost_; }
  const StepCost& cost() const { return cost_; }
  const Survival& group() const { return group_; }
  const DepthDecision& decision() const { return decision_; }

 private:
  static constexpr int kPlainSteps = 8;  // then one step at each level

  struct Candidate {
    double gain = 0;  // probability that this draft is committed
    double hope = 0;  // the same, as high as it may turn out
    int ask = 0;
    int position = 0;
  };
  struct Choice {
    int level = 0;
    int count = 0;  // of the candidates at or above the level, in order
    double tokens = 0, seconds = 0;
    double rate() const { return seconds > 0 ? tokens / seconds : 0; }
  };
  void take_fixed(std::span<const DepthAsk> asks, std::span<int> depths);
  void list_candidates(std::span<const DepthAsk> asks, bool all_there);
  bool sweeping() const { return sweep_ < kPlainSteps + options_.max_depth; }
  void choose_wants(std::span<const DepthAsk> asks);
  void find_other(const Choice& choice);
  void follow_looks(std::span<const DepthAsk> asks);
  double seconds(int draft_rows, int depth) const;
  Choice best_at(int level) const;
  Choice choose_level();
  Choice whole_level(int level) const;
  void apply(const Choice& choice, std::span<int> depths) const;
  void maybe_probe(std::span<const DepthAsk> asks, const Choice& choice, std::span<int> depths);
  bool plan_next(std::span<const DepthAsk> asks, const Choice& choice, bool all,
                 std::span<int> depths) const;
  bool plan_cheaper_next(std::span<const DepthAsk> asks, const Choice& choice,
                         std::span<const int> depths);
  bool plan_far(std::span<const DepthAsk> asks, std::span<const int> chosen,
                std::span<int> depths) const;
  void plan_level(std::span<const DepthAsk> asks, int level, std::span<int> depths) const;
  double price_of(std::span<const DepthAsk> asks, const Choice& choice, int* rows) const;
  int most(const DepthAsk& ask) const;

  const DepthOptions options_;
  StepCost cost_;
  Survival group_;
  std::vector<Candidate> candidates_;  // best first
  std::vector<int> planned_;           // scratch of a probe
  DepthDecision decision_;
  // Of the step that is being planned.
  int base_rows_ = 0, spare_rows_ = 0;
  int fixed_rows_ = 0, fixed_depth_ = 0;
  double base_tokens_ = 0;

  int level_ = 0;
  int sweep_ = 0;  // steps of the first look at every level
  int recent_want_ = 0, rested_ = 0, rested_rows_ = 0;
  int other_level_ = 1;      // the best but level_, as believed
  bool other_near_ = false;  // ... and hardly worse
  // Between looks drafters give what the best choice takes and one more, or rest; a look asks them
  // for all, so that probes find other depths.
  struct Look {
    bool open = false;
    int steps = 0;  // of this look with drafts, or of the time between two
    int waited = 0;
    int rest = 0;                                     // steps to the next one
    double expected = 0, variance = 0, accepted = 0;  // drafts of this look
  };
  Look look_;
  struct Probes {
    double budget = 0;  // seconds
    uint32_t turn = 0;
    int64_t last = 0;  // step
  };
  Probes next_, far_;
  int64_t steps_ = 0;
};

}  // namespace brigade::runtime
