// A drafter that knows the right continuation and is as right as its script says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/speculative/drafter.h"

namespace brigade::tests {

enum class DraftScript {
  kRight,
  kWrong,
  kSometimes,  // each token right with probability `right`, the others wrong
  kHostile,    // any id, valid or not, any number, right now and then
};

class ScriptedDrafter final : public runtime::Drafter {
 public:
  // `truth`: prompt and everything plain decoding would commit. Beyond it nothing is drafted.
  ScriptedDrafter(DraftScript script, std::vector<int32_t> truth, int vocab, double right = 0,
                  uint64_t seed = 1);

  void draft(std::span<const int32_t> text, int wanted, runtime::DraftList* drafts) override;
  void run_ahead(std::span<const int32_t> text, runtime::DraftList* drafts) override;

 private:
  int32_t token_at(size_t position) const;

  const DraftScript script_;
  const std::vector<int32_t> truth_;
  const int vocab_;
  const double right_;
  const uint64_t seed_;
};

}  // namespace brigade::tests
