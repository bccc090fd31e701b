#include "runtime/speculative/depth_control.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

constexpr double kGroupMemory = 2000;
constexpr int kPlainSteps = 8;  // then one step at each level
constexpr int64_t kStepsBetweenProbes = 8;
constexpr double kLeastProbeShare = 0.02;  // of a step: no probe is taken to be free
constexpr double kMostBudgetSteps = 20;

}  // namespace

DepthControl::DepthControl(const DepthOptions& options)
    : options_(options), cost_(options.max_rows), group_(kGroupMemory) {
  CHECK(options.max_depth >= 0 && options.max_depth <= kMaxDraftDepth);
  candidates_.reserve(static_cast<size_t>(options.max_sequences) *
                      static_cast<size_t>(options.max_depth));
  planned_.reserve(static_cast<size_t>(options.max_sequences));
}

void DepthControl::record(Survival* sequence, int tested, int accepted) {
  if (tested == 0) return;
  sequence->record(tested, accepted);
  group_.record(tested, accepted);
}

void DepthControl::choose(std::span<const DepthAsk> asks, int other_rows, int spare_rows,
                          std::span<int> depths) {
  CHECK(asks.size() == depths.size());
  base_rows_ = other_rows + static_cast<int>(asks.size());
  spare_rows_ = std::max(spare_rows, 0);
  std::fill(depths.begin(), depths.end(), 0);
  take_fixed(asks, depths);
  list_candidates(asks);
  const bool sweeping = !candidates_.empty() && sweep_ < kPlainSteps + options_.max_depth;
  Choice choice = best_at(0);
  if (sweeping) {
    plan_level(asks, std::max(0, ++sweep_ - kPlainSteps), depths);
  } else if (!candidates_.empty()) {
    choice = choose_level();
    level_ = choice.level;
  }
  apply(choice, depths);
  decision_ = {.level = choice.level,
               .draft_rows = fixed_rows_ + choice.count,
               .tokens = choice.tokens,
               .seconds = choice.seconds,
               .plain_seconds = cost_.step_seconds(base_rows_),
               .probe = sweeping};
  if (!candidates_.empty() && !sweeping) maybe_probe(asks, choice, depths);
  for (size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].mode == DepthMode::kAuto) asks[i].survival->fade(depths[i]);
  }
}

void DepthControl::take_fixed(std::span<const DepthAsk> asks, std::span<int> depths) {
  fixed_rows_ = fixed_depth_ = 0;
  base_tokens_ = static_cast<double>(asks.size());
  for (size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].mode != DepthMode::kFixed) continue;
    const int depth = std::min({asks[i].fixed, asks[i].available, spare_rows_ - fixed_rows_});
    if (depth <= 0) continue;
    depths[i] = depth;
    fixed_rows_ += depth;
    fixed_depth_ = std::max(fixed_depth_, depth);
    double alive = 1;
    for (int position = 0; position < depth; ++position) {
      alive *= asks[i].survival->conditional(position, &group_);
      base_tokens_ += alive;
    }
  }
}

// A draft counts as often as all up to it survive; so those of one sequence come in order.
void DepthControl::list_candidates(std::span<const DepthAsk> asks) {
  candidates_.clear();
  for (size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].mode != DepthMode::kAuto) continue;
    double alive = 1;
    for (int position = 0; position < std::min(asks[i].available, options_.max_depth); ++position) {
      alive *= asks[i].survival->conditional(position, &group_);
      candidates_.push_back({alive, static_cast<int>(i), position});
    }
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    if (a.gain != b.gain) return a.gain > b.gain;
    if (a.position != b.position) return a.position < b.position;
    return a.ask < b.ask;
  });
}

double DepthControl::seconds(int draft_rows, int depth) const {
  return cost_.step_seconds(base_rows_ + fixed_rows_ + draft_rows) +
         cost_.wait_seconds(std::max(depth, fixed_depth_));
}

// The best number of drafts, likeliest first, none deeper than `level`. Every number is looked at:
// a first row may be dear and the next ones free (an expert that is awake anyway, a tile that is
// padded anyway).
DepthControl::Choice DepthControl::best_at(int level) const {
  Choice best{.level = 0, .count = 0, .tokens = base_tokens_, .seconds = seconds(0, 0)};
  Choice tried = best;
  tried.level = level;
  for (const Candidate& candidate : candidates_) {
    if (candidate.position >= level) continue;
    if (++tried.count > spare_rows_ - fixed_rows_) break;
    tried.tokens += candidate.gain;
    tried.seconds = seconds(tried.count, level);
    if (tried.rate() > best.rate()) best = tried;
  }
  return best;
}

DepthControl::Choice DepthControl::choose_level() {
  const Choice current = best_at(level_);
  Choice best = current;
  for (int level = 0; level <= options_.max_depth; ++level) {
    const Choice choice = best_at(level);
    if (choice.rate() > best.rate()) best = choice;
  }
  return best.rate() > current.rate() * (1 + options_.hysteresis) ? best : current;
}

void DepthControl::apply(const Choice& choice, std::span<int> depths) const {
  int left = choice.count;
  for (const Candidate& candidate : candidates_) {
    if (left == 0) break;
    if (candidate.position >= choice.level) continue;
    depths[static_cast<size_t>(candidate.ask)] = candidate.position + 1;
    --left;
  }
}

int DepthControl::most(const DepthAsk& ask) const {
  return ask.mode == DepthMode::kAuto ? std::min(ask.available, options_.max_depth) : 0;
}

// Spends a small share of the time on other depths than the best known.
void DepthControl::maybe_probe(std::span<const DepthAsk> asks, const Choice& choice,
                               std::span<int> depths) {
  for (Probes* probes : {&next_, &far_}) {
    probes->budget = std::min(probes->budget + options_.probe_share / 2 * choice.seconds,
                              kMostBudgetSteps * choice.seconds);
  }
  ++steps_;
  if (choice.rate() <= 0) return;
  // Whichever has waited longer goes first.
  const bool far_first = far_.last < next_.last;
  for (Probes* probes : {far_first ? &far_ : &next_, far_first ? &next_ : &far_}) {
    if (steps_ - probes->last < kStepsBetweenProbes) continue;
    planned_.assign(depths.begin(), depths.end());
    const bool planned = probes == &next_ ? plan_cheaper_next(asks, choice, depths)
                                          : plan_far(asks, choice, planned_);
    if (!planned) {
      ++probes->turn;  // nothing to find out this way now
      continue;
    }
    int rows = 0;
    const double price = price_of(asks, choice, &rows);
    if (price > probes->budget) continue;
    probes->budget -= price;
    ++probes->turn;
    probes->last = steps_;
    std::copy(planned_.begin(), planned_.end(), depths.begin());
    decision_.probe = true;
    decision_.draft_rows = rows;
    return;
  }
}

// Time that the best choice would need less for the tokens of planned_.
double DepthControl::price_of(std::span<const DepthAsk> asks, const Choice& choice,
                              int* rows) const {
  int deepest = 0;
  double tokens = static_cast<double>(asks.size());
  *rows = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    *rows += planned_[i];
    deepest = std::max(deepest, planned_[i]);
    double alive = 1;
    for (int position = 0; position < planned_[i]; ++position) {
      alive *= asks[i].survival->conditional(position, &group_);
      tokens += alive;
    }
  }
  const double time = seconds(*rows - fixed_rows_, deepest);
  return std::max(time - tokens / choice.rate(), kLeastProbeShare * choice.seconds);
}

// One sequence, or all, one deeper than in `depths`. False when none can go.
bool DepthControl::plan_next(std::span<const DepthAsk> asks, const Choice& choice, bool all,
                             std::span<int> depths) const {
  int left = spare_rows_ - fixed_rows_ - choice.count;
  bool changed = false;
  for (size_t tried = 0; tried < asks.size() && left > 0; ++tried) {
    const size_t i = (next_.turn + tried) % asks.size();
    if (depths[i] >= most(asks[i])) continue;
    ++depths[i];
    --left;
    changed = true;
    if (!all) break;
  }
  return changed;
}

// Whichever of the two costs less for each draft that is put to the test.
bool DepthControl::plan_cheaper_next(std::span<const DepthAsk> asks, const Choice& choice,
                                     std::span<const int> depths) {
  int before = 0, rows = 0;
  for (const int depth : depths) before += depth;
  if (!plan_next(asks, choice, /*all=*/true, planned_)) return false;
  const double price_of_all = price_of(asks, choice, &rows) / (rows - before);
  planned_.assign(depths.begin(), depths.end());
  plan_next(asks, choice, /*all=*/false, planned_);
  if (price_of(asks, choice, &rows) <= price_of_all) return true;
  planned_.assign(depths.begin(), depths.end());
  return plan_next(asks, choice, /*all=*/true, planned_);
}

// Another level for all: plain and each depth in turn.
bool DepthControl::plan_far(std::span<const DepthAsk> asks, const Choice& choice,
                            std::span<int> depths) const {
  const auto levels = static_cast<uint32_t>(options_.max_depth) + 1;
  const auto level = static_cast<int>(far_.turn % levels);
  if (level == choice.level) return false;
  plan_level(asks, level, depths);
  return true;
}

void DepthControl::plan_level(std::span<const DepthAsk> asks, int level,
                              std::span<int> depths) const {
  int left = spare_rows_ - fixed_rows_;
  for (size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].mode != DepthMode::kAuto) continue;
    depths[i] = std::min({level, most(asks[i]), left});
    left -= depths[i];
  }
}

}  // namespace brigade::runtime
