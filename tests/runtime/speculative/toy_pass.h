// A target and a draft over a handful of tokens whose logits are a fixed function of the text so
// far, a sequence to commit to, and one verify pass over them. What the acceptance tests run on.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/request/request.h"
#include "runtime/speculative/accept.h"
#include "runtime/stream/commit.h"

namespace brigade::tests {

using Text = std::vector<int32_t>;
using Law = std::map<Text, double>;  // over finished outputs

struct Subject;

// Sampler options with a name for messages.
struct ToyOptions {
  std::string name;
  runtime::GenerateRequest request;  // prompt and max_tokens are set by the case
  Text eos;
};
std::vector<ToyOptions> toy_options(int vocab);

struct ToyCase {
  int vocab = 3;
  ToyOptions options;
  runtime::LawForm form = runtime::LawForm::kSparse;
  int sparse_entries = 4;  // of the draft's law
  int depth = 2;
  bool run_ahead = false;
  bool best_tokens = false;  // the target's rows come as these, where they decide
  int salt = 0;              // another pair of models
  std::string describe() const;
};

class ToySequence final : public runtime::Continuation {
 public:
  explicit ToySequence(const ToyCase& toy);

  runtime::PolicyInput policy_input() const override;
  uint32_t position() const override { return static_cast<uint32_t>(text_.size()); }
  bool commit(int32_t token, std::span<const float> row) override;

  const Text& text() const { return text_; }  // prompt and output
  const Text& output() const { return output_.tokens(); }
  bool ended() const { return output_.finished(); }
  // Set when a token was committed after the end or from another row than the target's for this
  // text, as far as the row is shown.
  const std::string& problem() const { return problem_; }

 private:
  const ToyCase& toy_;
  runtime::SequenceOutput output_;
  Text text_;
  std::string problem_;
};

// Rows of logits as verification takes them: whole, or as the best token of each.
class ToyRows {
 public:
  ToyRows(std::vector<std::vector<float>> logits, bool best_tokens);
  ToyRows(const ToyRows&) = delete;
  std::span<const runtime::TargetRow> rows() const { return rows_; }

 private:
  const std::vector<std::vector<float>> logits_;
  std::vector<int32_t> best_;  // of each
  std::vector<runtime::TargetRow> rows_;
};

std::vector<float> target_logits(const ToyCase& toy, const Text& text);

// The law of plain decoding over outputs that begin with `begin`, and the probability of `begin`.
Law plain_law(const ToyCase& toy);

// Drafts that were made and not yet tested, in order. Owns what DraftedToken points to.
class ToyDrafts {
 public:
  // Drafts on from `text` and the drafts held until `wanted` are held.
  void fill(const ToyCase& toy, const Subject& subject, const Text& text, int wanted,
            runtime::Chance* chance);
  void push(const runtime::DraftedToken& draft, const runtime::Distribution& law);
  int size() const { return static_cast<int>(held_.size()); }
  runtime::DraftedToken at(int index) const;
  void drop_front(int count) { held_.erase(held_.begin(), held_.begin() + count); }
  void clear() { held_.clear(); }

 private:
  struct Held {
    int32_t token;
    runtime::LawForm form;
    runtime::Distribution law;
  };
  std::vector<Held> held_;
};

// One verify pass over `depth` of the drafts (fewer if fewer are held), the next one as run-ahead
// when the case says so. Drops what was tested; after a mismatch everything.
runtime::Verdict toy_pass(const ToyCase& toy, const Subject& subject, ToyDrafts* drafts,
                          runtime::Chance* chance, ToySequence* sequence);

}  // namespace brigade::tests
