#include "runtime/engine/sequence.h"

#include <algorithm>
#include <utility>

#include "runtime/speculative/target_row.h"

namespace brigade::runtime {

Sequence::Sequence(const GenerateRequest& asked, int sample, std::span<const int32_t> eos_tokens,
                   const Tokenizer* tokenizer)
    : output(asked, sample, eos_tokens, tokenizer) {
  sample_index = sample;
}

ActiveRequest::ActiveRequest(GenerateRequest request, std::shared_ptr<TokenStream> client,
                             std::span<const int32_t> eos_tokens, const Tokenizer* tokenizer,
                             int block_size, absl::Time now)
    : asked(std::move(request)), stream(std::move(client)) {
  submitted = now;
  deadline = asked.deadline;
  if (!asked.cache_salt.empty()) salt = std::make_shared<const std::string>(asked.cache_salt);
  use_prefix_cache = asked.use_prefix_cache;
  max_positions = static_cast<int>(max_kv_positions(asked));
  const size_t most_blocks = static_cast<size_t>((max_positions + block_size - 1) / block_size);
  for (int i = 0; i < asked.num_sequences; ++i) {
    owned.push_back(std::make_unique<Sequence>(asked, i, eos_tokens, tokenizer));
    Sequence& made = *owned.back();
    made.request = this;
    made.tokens.reserve(asked.prompt.size() + static_cast<size_t>(asked.max_tokens));
    made.tokens.assign(asked.prompt.begin(), asked.prompt.end());
    made.tokens.insert(made.tokens.end(), asked.generated_so_far.begin(),
                       asked.generated_so_far.end());
    made.blocks.reserve(most_blocks + 1);
    sequences.push_back(&made);
  }
}

void ActiveRequest::add_speculation(const EngineConfig& config, int vocab, int max_law_entries) {
  for (const auto& sequence : owned) {
    sequence->speculation = make_speculation(asked, config, vocab, max_law_entries);
    if (sequence->speculation == nullptr) return;
    speculates = true;
    sequence->drafts.reserve(static_cast<size_t>(sequence->speculation->fixed));
  }
}

bool ActiveRequest::done() const {
  return ended == static_cast<int>(owned.size()) &&
         std::none_of(owned.begin(), owned.end(), [](const auto& s) { return s->in_flight; });
}

PolicyInput policy_input(const ActiveRequest& request, const Sequence& sequence) {
  return {.params = &request.asked.sampling,
          .counts = &sequence.output.counts(),
          .forbidden_now = sequence.output.forbidden_now()};
}

// Good for the rows of drafts too: what is forbidden below min_tokens only grows less on the way.
RowOutput row_output(const ActiveRequest& request, const Sequence& sequence) {
  if (request.asked.sampling.logprobs >= 0) return RowOutput::kLogits;
  return sufficient_output(policy_input(request, sequence));
}

int64_t max_kv_positions(const GenerateRequest& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.max_tokens - 1;
}

}  // namespace brigade::runtime
