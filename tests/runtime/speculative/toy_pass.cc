#include "tests/runtime/speculative/toy_pass.h"

#include <algorithm>

#include "tests/runtime/speculative/law_checks.h"

namespace brigade::tests {
namespace {

using runtime::Distribution;
using runtime::LawForm;

// Logits in [-2.5, 2.5], in eighths.
std::vector<float> toy_logits(uint64_t model, int vocab, const Text& text) {
  uint64_t hash = 0x9E3779B97F4A7C15u * (model + 1);
  for (const int32_t token : text) {
    hash = (hash ^ static_cast<uint64_t>(token + 1)) * 0xBF58476D1CE4E5B9u;
    hash ^= hash >> 29;
  }
  std::vector<float> logits;
  for (int token = 0; token < vocab; ++token) {
    hash = hash * 0x94D049BB133111EBu + 1;
    logits.push_back(static_cast<float>(static_cast<int>((hash >> 40) % 41) - 20) / 8);
  }
  return logits;
}

ToyOptions plain_options(const std::string& name, double temperature) {
  ToyOptions options;
  options.name = name;
  options.request.sampling.temperature = temperature;
  options.request.stop.ignore_eos = true;
  return options;
}

void extend(const ToyCase& toy, ToySequence* sequence, double weight, Law* law) {
  if (sequence->ended()) {
    (*law)[sequence->output()] += weight;
    return;
  }
  runtime::Policy policy(toy.vocab);
  Distribution next;
  const std::vector<float> row = target_logits(toy, sequence->text());
  if (!policy.distribution(row, sequence->policy_input(), &next)) return;
  for (size_t i = 0; i < next.tokens.size(); ++i) {
    ToySequence longer(toy);
    for (const int32_t token : sequence->output()) {
      longer.commit(token, target_logits(toy, longer.text()));
    }
    longer.commit(next.tokens[i], row);
    extend(toy, &longer, weight * next.probabilities[i], law);
  }
}

}  // namespace

std::vector<ToyOptions> toy_options(int vocab) {
  std::vector<ToyOptions> all;
  all.push_back(plain_options("temperature 1", 1));
  all.push_back(plain_options("temperature 0.5", 0.5));
  all.push_back(plain_options("top-k 2", 1.3));
  all.back().request.sampling.top_k = 2;
  all.push_back(plain_options("top-p 0.6", 1));
  all.back().request.sampling.top_p = 0.6;
  all.push_back(plain_options("min-p 0.3", 1.5));
  all.back().request.sampling.min_p = 0.3;
  all.push_back(plain_options("penalties", 1));
  all.back().request.sampling.repetition_penalty = 1.4;
  all.back().request.sampling.presence_penalty = 0.7;
  all.back().request.sampling.frequency_penalty = 0.4;
  all.push_back(plain_options("bias and ban", 1));
  all.back().request.sampling.logit_bias = {{0, -1.5f}};
  all.back().request.sampling.banned_tokens = {vocab - 1};
  if (vocab == 2) all.back().request.sampling.banned_tokens.clear();
  all.push_back(plain_options("end token and min tokens", 1));
  all.back().request.stop.ignore_eos = false;
  all.back().request.min_tokens = 2;
  all.back().eos = {1};
  return all;
}

std::string ToyCase::describe() const {
  return options.name + ", vocabulary " + std::to_string(vocab) + ", depth " +
         std::to_string(depth) + ", form " + std::to_string(static_cast<int>(form)) + " of " +
         std::to_string(sparse_entries) + (run_ahead ? ", run-ahead" : "") +
         (best_tokens ? ", best tokens" : "") + ", length " +
         std::to_string(options.request.max_tokens) + ", models " + std::to_string(salt);
}

ToySequence::ToySequence(const ToyCase& toy)
    : toy_(toy),
      output_(toy.options.request, 0, toy.options.eos, nullptr),
      text_(toy.options.request.prompt) {}

runtime::PolicyInput ToySequence::policy_input() const {
  return {.params = &toy_.options.request.sampling,
          .counts = &output_.counts(),
          .forbidden_now = output_.forbidden_now()};
}

bool ToySequence::commit(int32_t token, std::span<const float> row) {
  if (output_.finished()) {
    problem_ = "a token after the end";
    return false;
  }
  const std::vector<float> expected = target_logits(toy_, text_);
  const bool shown = !toy_.best_tokens || !row.empty();
  if (shown && !std::equal(row.begin(), row.end(), expected.begin(), expected.end())) {
    problem_ = "a token from another row";
  }
  text_.push_back(token);
  output_.commit_token(token, std::nullopt);
  return !output_.finished();
}

ToyRows::ToyRows(std::vector<std::vector<float>> logits, bool best_tokens)
    : logits_(std::move(logits)), best_(logits_.size()), rows_(logits_.size()) {
  static constexpr double kCertain = 1;
  for (size_t i = 0; i < logits_.size(); ++i) {
    if (!best_tokens) {
      rows_[i].logits = logits_[i];
    } else if (runtime::usable_logits(logits_[i])) {
      const auto best = std::max_element(logits_[i].begin(), logits_[i].end());
      best_[i] = static_cast<int32_t>(best - logits_[i].begin());
      rows_[i].law = {.tokens = {&best_[i], 1}, .probabilities = {&kCertain, 1}};
    }
  }
}

std::vector<float> target_logits(const ToyCase& toy, const Text& text) {
  return toy_logits(static_cast<uint64_t>(2 * toy.salt), toy.vocab, text);
}

Law plain_law(const ToyCase& toy) {
  Law law;
  ToySequence sequence(toy);
  extend(toy, &sequence, 1, &law);
  return law;
}

void ToyDrafts::fill(const ToyCase& toy, const Subject& subject, const Text& text, int wanted,
                     runtime::Chance* chance) {
  Text guess = text;
  for (const Held& held : held_) guess.push_back(held.token);
  runtime::SamplingParams params;
  params.temperature = 1.5;
  runtime::Policy policy(toy.vocab);
  Distribution full, law;
  std::vector<int32_t> tokens;
  std::vector<float> weights;
  while (size() < wanted) {
    const auto logits = toy_logits(static_cast<uint64_t>(2 * toy.salt + 1), toy.vocab, guess);
    policy.distribution(logits, {.params = &params, .counts = nullptr, .forbidden_now = {}}, &full);
    Held held{.token = 0, .form = toy.form, .law = {}};
    if (toy.form == LawForm::kSparse) {
      runtime::sparse_weights(full, toy.sparse_entries, &tokens, &weights);
      // Weights have any scale on the wire.
      for (float& weight : weights) weight *= 3;
      (void)subject.law_from_weights(tokens, weights, toy.vocab, &held.law);
      (void)runtime::law_from_weights(tokens, weights, toy.vocab, &law);
      held.token =
          chance->pick(law, static_cast<uint32_t>(guess.size()), runtime::RandomPurpose::kDraft);
    } else {
      held.token =
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
    guess.push_back(held.token);
    held_.push_back(std::move(held));
  }
}

void ToyDrafts::push(const runtime::DraftedToken& draft, const Distribution& law) {
  held_.push_back({draft.token, draft.form, law});
}

runtime::DraftedToken ToyDrafts::at(int index) const {
  const Held& held = held_[static_cast<size_t>(index)];
  return {.token = held.token,
          .form = held.form,
          .law_tokens = held.law.tokens,
          .law_probabilities = held.law.probabilities};
}

runtime::Verdict toy_pass(const ToyCase& toy, const Subject& subject, ToyDrafts* drafts,
                          runtime::Chance* chance, ToySequence* sequence) {
  const int depth = std::min(toy.depth, drafts->size());
  Text text = sequence->text();
  std::vector<runtime::DraftedToken> tested;
  std::vector<std::vector<float>> logits = {target_logits(toy, text)};
  for (int i = 0; i < depth; ++i) {
    tested.push_back(drafts->at(i));
    text.push_back(tested.back().token);
    logits.push_back(target_logits(toy, text));
  }
  const bool decides =
      runtime::sufficient_output(sequence->policy_input()) == runtime::RowOutput::kBestToken;
  const ToyRows rows(std::move(logits), toy.best_tokens && decides);
  runtime::DraftedToken next;
  const bool run_ahead = toy.run_ahead && drafts->size() > depth;
  if (run_ahead) next = drafts->at(depth);
  runtime::VerifyScratch scratch(toy.vocab);
  const runtime::Verdict verdict =
      subject.verify({.rule = runtime::accept_rule(toy.options.request.sampling),
                      .rows = rows.rows(),
                      .drafts = tested,
                      .run_ahead = run_ahead ? &next : nullptr},
                     &scratch, chance, sequence);
  const bool chain_lives = verdict.accepted == depth && verdict.run_ahead_accepted;
  if (chain_lives) {
    drafts->drop_front(depth + 1);
  } else {
    drafts->clear();
  }
  return verdict;
}

}  // namespace brigade::tests
