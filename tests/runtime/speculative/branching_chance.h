// An oracle for randomness: walks every branch of a computation that asks a Chance, leaf after
// leaf, each with its exact probability. No number is drawn.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/speculative/chance.h"

namespace brigade::tests {

class BranchingChance final : public runtime::Chance {
 public:
  // Begins the first leaf, then each next one. False when all have been visited.
  bool next_leaf() {
    if (started_) {
      while (!path_.empty() && !advance(&path_.back())) path_.pop_back();
      if (path_.empty()) return false;
    }
    started_ = true;
    depth_ = 0;
    weight_ = 1;
    used_.clear();
    return true;
  }
  // Probability of the branches taken since next_leaf().
  double weight() const { return weight_; }
  // A law that does not sum to 1, or one random number used twice; empty when all is well.
  const std::string& problem() const { return problem_; }

  bool accept(double p, double q, uint32_t position) override {
    note_use(runtime::RandomPurpose::kAccept, position);
    const double yes = q > 0 ? std::min(1.0, p / q) : (p > 0 ? 1.0 : 0.0);
    return branch({yes, 1 - yes}) == 0;
  }
  int32_t pick(const runtime::Distribution& distribution, uint32_t position,
               runtime::RandomPurpose purpose) override {
    note_use(purpose, position);
    std::array<double, kMost> options{};
    double sum = 0;
    for (size_t i = 0; i < distribution.tokens.size(); ++i) {
      options.at(i) = distribution.probabilities[i];
      sum += options[i];
    }
    if (!(std::abs(sum - 1) < 1e-12)) problem_ = "a law that sums to " + std::to_string(sum);
    return distribution.tokens[static_cast<size_t>(branch(options))];
  }

 private:
  static constexpr size_t kMost = 4;
  struct Choice {
    std::array<double, kMost> options{};
    size_t at = 0;
  };

  // Drafts may be made again at one position: those that came before were dropped unseen.
  void note_use(runtime::RandomPurpose purpose, uint32_t position) {
    if (purpose == runtime::RandomPurpose::kDraft) return;
    if (!used_.emplace(static_cast<uint32_t>(purpose), position).second) {
      problem_ = "one random number used twice at position " + std::to_string(position);
    }
  }
  static bool advance(Choice* choice) {
    do {
      ++choice->at;
    } while (choice->at < kMost && choice->options[choice->at] <= 0);
    return choice->at < kMost;
  }
  template <size_t N>
  int branch(const std::array<double, N>& options) {
    if (depth_ == path_.size()) {
      Choice choice;
      std::copy(options.begin(), options.end(), choice.options.begin());
      if (choice.options[0] <= 0 && !advance(&choice)) choice.at = 0;
      path_.push_back(choice);
    }
    const Choice& choice = path_[depth_++];
    weight_ *= choice.options[choice.at];
    return static_cast<int>(choice.at);
  }
  int branch(std::initializer_list<double> options) {
    std::array<double, kMost> all{};
    std::copy(options.begin(), options.end(), all.begin());
    return branch(all);
  }

  std::vector<Choice> path_;
  size_t depth_ = 0;
  double weight_ = 1;
  bool started_ = false;
  std::set<std::pair<uint32_t, uint32_t>> used_;
  std::string problem_;
};

}  // namespace brigade::tests
