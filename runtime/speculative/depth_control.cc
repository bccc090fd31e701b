#include "runtime/speculative/depth_control.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

constexpr double kGroupMemory = 2000;
constexpr int kLookSteps = 16, kMostLookWait = 64;
constexpr int kFirstRest = 64, kLongestRest = 512;
constexpr double kSurprise = 2;  // standard deviations
constexpr double kNear = 0.95;   // of the best rate
constexpr int64_t kStepsBetweenProbes = 8;
constexpr double kLeastProbeShare = 0.02;  // of a step: no probe is taken to be free
constexpr double kFirstBudgetSteps = 10, kMostBudgetSteps = 20;

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
  for (int i = 0; look_.open && i < std::min(tested, accepted + 1); ++i) {
    const double chance = sequence->conditional(i, &group_);
    look_.expected += chance;
    look_.variance += chance * (1 - chance);
    look_.accepted += i < accepted;
  }
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
  choose_wants(asks);
  list_candidates(asks, /*all_there=*/false);
  const bool sweeping = !candidates_.empty() && this->sweeping();
  Choice choice = best_at(0);
  if (sweeping) {
    plan_level(asks, std::max(0, ++sweep_ - kPlainSteps), depths);
  } else if (!candidates_.empty()) {
    choice = best_at(level_);
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
  if (!this->sweeping()) follow_looks(asks);
}

int DepthControl::first_want(DepthMode mode, int fixed) const {
  if (mode != DepthMode::kAuto) return mode == DepthMode::kFixed ? fixed : 0;
  return sweeping() || look_.open ? options_.max_depth : recent_want_;
}

// What the best choice would take if every draft were there, and one more for the next depth's
// probes. So a drafter rests while its drafts do not pay, and is asked as soon as they would.
void DepthControl::choose_wants(std::span<const DepthAsk> asks) {
  const bool all = sweeping() || look_.open;
  // While all rest, looking at it now and then will do.
  if (!all && recent_want_ == 0 && base_rows_ == rested_rows_ && ++rested_ % 4 != 0) return;
  rested_rows_ = base_rows_;
  list_candidates(asks, /*all_there=*/true);
  const bool any = !candidates_.empty();
  Choice choice;
  if (any && !sweeping()) {
    choice = choose_level();
    level_ = choice.level;
    find_other(choice);
  }
  for (const DepthAsk& ask : asks) {
    if (ask.want == nullptr) continue;
    *ask.want = ask.mode == DepthMode::kFixed ? ask.fixed : 0;
    if (all && ask.mode == DepthMode::kAuto) *ask.want = options_.max_depth;
  }
  if (any) recent_want_ = all ? options_.max_depth : 0;
  if (all) return;
  int left = choice.count;
  for (const Candidate& candidate : candidates_) {
    if (left == 0) return;
    if (candidate.position >= choice.level) continue;
    --left;
    const int want = std::min(candidate.position + 2, options_.max_depth);
    if (asks[static_cast<size_t>(candidate.ask)].want == nullptr) continue;
    *asks[static_cast<size_t>(candidate.ask)].want = want;
    recent_want_ = std::max(recent_want_, want);
  }
}

void DepthControl::find_other(const Choice& choice) {
  double best = 0;
  for (int level = 0; level <= options_.max_depth; ++level) {
    if (level == level_) continue;
    const double rate = whole_level(level).rate();
    if (rate <= best) continue;
    best = rate;
    other_level_ = level;
  }
  other_near_ = best > kNear * choice.rate();
}

// A look ends after some steps with drafts, or when none come. While drafts do not pay and are no
// better than believed, looks get rarer.
void DepthControl::follow_looks(std::span<const DepthAsk> asks) {
  const bool automatic = std::any_of(
      asks.begin(), asks.end(), [](const DepthAsk& ask) { return ask.mode == DepthMode::kAuto; });
  if (!automatic) return;
  if (!look_.open) {
    look_.rest = std::clamp(look_.rest, kFirstRest, kLongestRest);
    if (level_ > 0) look_.rest = kFirstRest;
    if (++look_.steps >= look_.rest) look_ = {.open = true, .rest = look_.rest};
    return;
  }
  look_.steps += !candidates_.empty();
  if (look_.steps < kLookSteps && ++look_.waited < kMostLookWait) return;
  const bool better = look_.accepted > look_.expected + kSurprise * std::sqrt(look_.variance) + 0.5;
  const bool rests = level_ == 0 && !better && !other_near_;
  look_ = {.rest = rests ? 2 * look_.rest : kFirstRest};
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
void DepthControl::list_candidates(std::span<const DepthAsk> asks, bool all_there) {
  candidates_.clear();
  for (size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].mode != DepthMode::kAuto) continue;
    double alive = 1, hope = 1;
    const int there = all_there ? options_.max_depth : most(asks[i]);
    for (int position = 0; position < there; ++position) {
      alive *= asks[i].survival->conditional(position, &group_);
      hope *= all_there ? asks[i].survival->hopeful(position, group_) : 0;
      candidates_.push_back({alive, hope, static_cast<int>(i), position});
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
  for (const Candidate& candidate : candidates_) {
    if (candidate.position >= level) continue;
    if (++tried.count > spare_rows_ - fixed_rows_) break;
    tried.level = std::max(tried.level, candidate.position + 1);
    tried.tokens += candidate.gain;
    tried.seconds = seconds(tried.count, tried.level);
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

// Every draft above the level, worth it or not, with what may be hoped for.
DepthControl::Choice DepthControl::whole_level(int level) const {
  Choice whole{.level = level, .count = 0, .tokens = base_tokens_, .seconds = 0};
  for (const Candidate& candidate : candidates_) {
    if (candidate.position >= level) continue;
    if (whole.count == spare_rows_ - fixed_rows_) break;
    ++whole.count;
    whole.tokens += candidate.hope;
  }
  whole.seconds = seconds(whole.count, level);
  return whole;
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
    if (steps_ == 0) probes->budget = kFirstBudgetSteps * choice.seconds;
    probes->budget = std::min(probes->budget + options_.probe_share / 2 * choice.seconds,
                              kMostBudgetSteps * choice.seconds);
  }
  ++steps_;
  if (choice.rate() <= 0) return;
  // Whichever has waited longer goes first.
  const bool far_first = far_.last < next_.last;
  for (Probes* probes : {far_first ? &far_ : &next_, far_first ? &next_ : &far_}) {
    if (steps_ - probes->last < (look_.open ? 2 : kStepsBetweenProbes)) continue;
    planned_.assign(depths.begin(), depths.end());
    const bool planned = probes == &next_ ? plan_cheaper_next(asks, choice, depths)
                                          : plan_far(asks, depths, planned_);
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

// Another level for all: in turn the best of the others, as far as is known, and each of them.
bool DepthControl::plan_far(std::span<const DepthAsk> asks, std::span<const int> chosen,
                            std::span<int> depths) const {
  const auto levels = static_cast<uint32_t>(options_.max_depth) + 1;
  const auto level = far_.turn % 2 == 0 ? other_level_ : static_cast<int>(far_.turn / 2 % levels);
  plan_level(asks, level, depths);
  return !std::equal(depths.begin(), depths.end(), chosen.begin());
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
