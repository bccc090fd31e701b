#include "tests/runtime/speculative/law_checks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/runtime/speculative/branching_chance.h"
#include "tests/runtime/speculative/toy_pass.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using runtime::LawForm;

double distance(const Law& a, const Law& b) {
  double sum = 0;
  for (const auto& [text, weight] : a) {
    const auto other = b.find(text);
    sum += std::abs(weight - (other == b.end() ? 0 : other->second));
  }
  for (const auto& [text, weight] : b) {
    if (!a.contains(text)) sum += weight;
  }
  return sum / 2;
}

ToyCase make_case(int vocab, const ToyOptions& options, int length) {
  ToyCase toy;
  toy.vocab = vocab;
  toy.options = options;
  toy.options.request.prompt = {0, 1};
  toy.options.request.max_tokens = length;
  toy.options.request.min_tokens = std::min(toy.options.request.min_tokens, length);
  return toy;
}

// The law of `passes` verify passes followed by plain decoding (-1: passes to the end).
std::string compare_law(const ToyCase& toy, const Subject& subject, int passes) {
  std::map<Text, double> reached;
  BranchingChance chance;
  while (chance.next_leaf()) {
    ToySequence sequence(toy);
    ToyDrafts drafts;
    for (int pass = 0; pass != passes && !sequence.ended(); ++pass) {
      // Run-ahead keeps two drafts more, so that a chain can live on after its first token was
      // tested.
      drafts.fill(toy, subject, sequence.text(),
                  toy.depth + (toy.run_ahead ? (passes == 1 ? 1 : 2) : 0), &chance);
      const size_t before = sequence.output().size();
      const runtime::Verdict verdict = toy_pass(toy, subject, &drafts, &chance, &sequence);
      if (static_cast<int>(sequence.output().size() - before) != verdict.committed ||
          verdict.committed < 1) {
        return toy.describe() + ": the verdict's count is not what was committed";
      }
    }
    if (!sequence.problem().empty()) return toy.describe() + ": " + sequence.problem();
    if (!chance.problem().empty()) return toy.describe() + ": " + chance.problem();
    reached[sequence.output()] += chance.weight();
  }
  const Law plain = plain_law(toy);
  // What follows an output that has not ended is plain: its share of the plain law, scaled.
  Law law;
  for (const auto& [begin, weight] : reached) {
    const auto starts_so = [&](const Text& text) {
      return text.size() >= begin.size() && std::equal(begin.begin(), begin.end(), text.begin());
    };
    double share = 0;
    for (const auto& [text, p] : plain) share += starts_so(text) ? p : 0;
    if (!(share > 0)) return toy.describe() + ": an output that plain decoding cannot give";
    for (const auto& [text, p] : plain) {
      if (starts_so(text)) law[text] += weight * p / share;
    }
  }
  const double apart = distance(law, plain);
  if (apart < 1e-12) return "";
  return toy.describe() + ": total variation " + std::to_string(apart);
}

std::string one_pass_law(const Subject& subject) {
  for (int vocab = 2; vocab <= 4; ++vocab) {
    const std::vector<ToyOptions> all = toy_options(vocab);
    for (size_t option = 0; option < all.size(); ++option) {
      for (int depth = 0; depth <= 4; ++depth) {
        // Short runs leave out most of the widest trees.
        const bool wide = vocab == 4 && depth >= 3;
        if (wide && option % 4 != 1 && !is_long_run()) continue;
        for (int variant = 0; variant < 3; ++variant) {
          ToyCase toy = make_case(vocab, all[option], 4);
          toy.depth = depth;
          toy.form = variant == 2 ? LawForm::kPointMass : LawForm::kSparse;
          toy.sparse_entries = variant == 0 ? vocab : 2;
          toy.salt = static_cast<int>(option) + depth;
          for (const bool run_ahead : {false, true}) {
            toy.run_ahead = run_ahead;
            if (run_ahead && wide && variant == 0 && !is_long_run()) continue;
            const std::string wrong = compare_law(toy, subject, 1);
            if (!wrong.empty()) return wrong;
          }
        }
      }
    }
  }
  return "";
}

std::string whole_sequence_law(const Subject& subject) {
  for (const auto& [vocab, length] : {std::pair{2, 4}, std::pair{3, 3}}) {
    const std::vector<ToyOptions> all = toy_options(vocab);
    for (size_t option = 0; option < all.size(); ++option) {
      if (option % 2 == 0 && vocab == 3 && !is_long_run()) continue;
      for (int depth = 0; depth <= (vocab == 2 ? 2 : 1); ++depth) {
        for (const bool run_ahead : {false, true}) {
          ToyCase toy = make_case(vocab, all[option], length);
          toy.depth = depth;
          toy.run_ahead = run_ahead;
          toy.salt = static_cast<int>(option);
          const std::string wrong = compare_law(toy, subject, -1);
          if (!wrong.empty()) return wrong;
        }
      }
    }
  }
  return "";
}

// Every output of `subject` on `drafts` must be what `plain` decoding gives, and the count of
// accepted drafts the length of the common prefix.
std::string equals_plain(const ToyCase& toy, const Subject& subject, const Text& drafts) {
  const runtime::RandomKey key{.seed = toy.options.request.sampling.seed, .sample_index = 3};
  runtime::KeyedChance chance(key);
  ToySequence plain(toy);
  runtime::Policy policy(toy.vocab);
  runtime::Distribution next;
  while (!plain.ended()) {
    const std::vector<float> row = target_logits(toy, plain.text());
    if (!policy.distribution(row, plain.policy_input(), &next)) return "no candidate";
    plain.commit(runtime::draw(next, key, plain.position()), row);
  }
  ToySequence sequence(toy);
  ToyDrafts held;
  for (const int32_t token : drafts) held.push({.token = token, .form = toy.form}, {});
  const runtime::Verdict verdict = toy_pass(toy, subject, &held, &chance, &sequence);
  const Text& output = sequence.output();
  const std::string where = toy.describe() + ", first draft " + std::to_string(drafts[0]);
  if (!sequence.problem().empty()) return where + ": " + sequence.problem();
  if (!std::equal(output.begin(), output.end(), plain.output().begin())) {
    return where + ": the output is not plain decoding's";
  }
  const int most = std::min<int>(toy.depth, static_cast<int>(plain.output().size()));
  int common = 0;
  while (common < most &&
         drafts[static_cast<size_t>(common)] == plain.output()[static_cast<size_t>(common)]) {
    ++common;
  }
  const int expected = std::min<int>(common + 1, static_cast<int>(plain.output().size()));
  if (verdict.accepted != common || verdict.committed != expected) {
    return where + ": accepted " + std::to_string(verdict.accepted) + ", committed " +
           std::to_string(verdict.committed);
  }
  const bool reached_last = common == toy.depth && verdict.committed == toy.depth + 1;
  const bool run_ahead_right =
      reached_last && toy.run_ahead &&
      drafts[static_cast<size_t>(toy.depth)] == output[static_cast<size_t>(toy.depth)];
  if (verdict.run_ahead_accepted != run_ahead_right) return where + ": run-ahead verdict";
  return "";
}

// Every combination of drafts of depth 0 to 4 (and a run-ahead token).
std::string all_drafts_equal_plain(ToyCase toy, const Subject& subject) {
  for (toy.depth = 0; toy.depth <= 3; ++toy.depth) {
    toy.run_ahead = toy.depth % 2 == 1;
    Text drafts(static_cast<size_t>(toy.depth) + 1, 0);
    while (true) {
      const std::string wrong = equals_plain(toy, subject, drafts);
      if (!wrong.empty()) return wrong;
      size_t at = 0;
      while (at < drafts.size() && ++drafts[at] == toy.vocab) drafts[at++] = 0;
      if (at == drafts.size()) break;
    }
  }
  return "";
}

std::string greedy_equals_plain(const Subject& subject) {
  for (int vocab = 2; vocab <= 4; ++vocab) {
    for (ToyOptions options : toy_options(vocab)) {
      options.request.sampling.temperature = 0;
      ToyCase toy = make_case(vocab, options, 4);
      toy.form = LawForm::kNone;
      for (const bool best_tokens : {false, true}) {
        toy.best_tokens = best_tokens;
        const std::string wrong = all_drafts_equal_plain(toy, subject);
        if (!wrong.empty()) return wrong;
      }
    }
  }
  return "";
}

std::string coupled_equals_plain(const Subject& subject) {
  for (int vocab = 2; vocab <= 4; ++vocab) {
    for (ToyOptions options : toy_options(vocab)) {
      options.request.sampling.seed_from_client = true;
      for (uint64_t seed = 0; seed < 6; ++seed) {
        options.request.sampling.seed = seed * 77 + test_seed();
        ToyCase toy = make_case(vocab, options, 4);
        toy.form = LawForm::kNone;
        toy.salt = static_cast<int>(seed);
        const std::string wrong = all_drafts_equal_plain(toy, subject);
        if (!wrong.empty()) return wrong;
      }
    }
  }
  return "";
}

std::string edge_randoms(const Subject& subject) {
  const double below_one = std::nextafter(1.0, 0.0);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct Edge {
    double u, p, q;
    bool accepted;
  };
  for (const Edge& edge :
       {Edge{0, 0, 0.5, false}, Edge{0, 0, 0, false}, Edge{0, 1e-300, 1, true},
        Edge{below_one, 0.3, 0.3, true}, Edge{below_one, 1, 1, true},
        Edge{below_one, 0.3, 0.30001, false}, Edge{0.5, 0.25, 0.5, false}, Edge{0.5, 0.2, 0, true},
        Edge{below_one, 0, 0, false}, Edge{0.5, nan, 0.5, false}, Edge{0.5, 0.5, nan, false}}) {
    if (subject.accepts(edge.u, edge.p, edge.q) != edge.accepted) {
      return "u " + std::to_string(edge.u) + ", p " + std::to_string(edge.p) + ", q " +
             std::to_string(edge.q);
    }
  }
  return "";
}

// A NaN or infinite row ends the pass before anything is drawn from it, and only when it is
// reached.
std::string rows_not_finite(const Subject& subject) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (const auto& [bad, best_tokens] :
       std::vector<std::pair<float, bool>>{{nan, false}, {infinity, false}, {nan, true}}) {
    for (size_t bad_row = 0; bad_row <= 3; ++bad_row) {
      ToyOptions options = toy_options(3)[0];
      options.request.sampling.temperature = 0;
      ToyCase toy = make_case(3, options, 8);
      toy.best_tokens = best_tokens;
      ToySequence plain(toy), sequence(toy);
      std::vector<std::vector<float>> logits;
      std::vector<runtime::DraftedToken> drafts;
      for (size_t i = 0; i <= 3; ++i) {
        logits.push_back(target_logits(toy, plain.text()));
        const auto best = std::max_element(logits.back().begin(), logits.back().end());
        drafts.push_back({.token = static_cast<int32_t>(best - logits.back().begin())});
        plain.commit(drafts.back().token, logits.back());
      }
      drafts.pop_back();
      logits[bad_row][1] = bad;
      const ToyRows rows(std::move(logits), best_tokens);
      runtime::VerifyScratch scratch(3);
      runtime::KeyedChance chance({});
      const runtime::Verdict verdict =
          subject.verify({.rows = rows.rows(), .drafts = drafts}, &scratch, &chance, &sequence);
      if (verdict.outcome != runtime::VerifyOutcome::kNotFinite ||
          verdict.committed != static_cast<int>(bad_row) || !sequence.problem().empty()) {
        return "bad row " + std::to_string(bad_row) + ": committed " +
               std::to_string(verdict.committed);
      }
    }
  }
  return "";
}

// Real random numbers instead of the oracle: target (.7, .3), draft (.2, .8), every position of the
// answer. Upper bound of chi-square with one degree of freedom: 24 is p < 1e-6.
std::string keyed_marginals(const Subject& subject) {
  const std::vector<float> row = {std::log(0.7f), std::log(0.3f)};
  runtime::GenerateRequest request;
  request.max_tokens = 4;
  request.sampling.temperature = 1;
  struct Flat final : runtime::Continuation {
    explicit Flat(const runtime::GenerateRequest& asked) : params(asked.sampling) {}
    runtime::PolicyInput policy_input() const override {
      return {.params = &params, .counts = nullptr, .forbidden_now = {}};
    }
    uint32_t position() const override { return static_cast<uint32_t>(text.size()); }
    bool commit(int32_t token, std::span<const float>) override {
      text.push_back(token);
      return true;
    }
    runtime::SamplingParams params;
    Text text;
  };
  runtime::VerifyScratch scratch(2);
  const std::vector<runtime::TargetRow> rows(4, {.logits = row, .law = {}});
  runtime::Distribution law;
  const std::vector<int32_t> ids = {0, 1};
  const std::vector<float> weights = {0.2f, 0.8f};
  (void)subject.law_from_weights(ids, weights, 2, &law);
  std::array<std::array<double, 2>, 4> seen{};
  const int trials = 30000;
  for (int trial = 0; trial < trials; ++trial) {
    const runtime::RandomKey key{.seed = test_seed() * 1000003 + static_cast<uint64_t>(trial)};
    runtime::KeyedChance chance(key);
    std::vector<runtime::DraftedToken> drafts;
    for (uint32_t i = 0; i < 3; ++i) {
      drafts.push_back({.token = runtime::draw(law, key, i, runtime::RandomPurpose::kDraft),
                        .form = LawForm::kSparse,
                        .law_tokens = law.tokens,
                        .law_probabilities = law.probabilities});
    }
    Flat sequence(request);
    subject.verify({.rule = runtime::AcceptRule::kRejection, .rows = rows, .drafts = drafts},
                   &scratch, &chance, &sequence);
    for (size_t i = 0; i < sequence.text.size(); ++i) {
      ++seen[i][static_cast<size_t>(sequence.text[i])];
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    const double all = seen[i][0] + seen[i][1];
    const double expected = 0.7 * all;
    const double chi = std::pow(seen[i][0] - expected, 2) / (expected * 0.3);
    if (!(chi < 24)) return "position " + std::to_string(i) + ": chi-square " + std::to_string(chi);
  }
  return "";
}

}  // namespace

const std::vector<LawCheck>& law_checks() {
  static const std::vector<LawCheck> checks = {
      {"one_pass_law", &one_pass_law},
      {"whole_sequence_law", &whole_sequence_law},
      {"greedy_equals_plain", &greedy_equals_plain},
      {"coupled_equals_plain", &coupled_equals_plain},
      {"edge_randoms", &edge_randoms},
      {"rows_not_finite", &rows_not_finite},
      {"keyed_marginals", &keyed_marginals},
  };
  return checks;
}

}  // namespace brigade::tests
