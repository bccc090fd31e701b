#include "runtime/speculative/draft_source.h"

#include "runtime/speculative/prompt_lookup.h"

namespace brigade::runtime {

std::unique_ptr<Drafter> PromptLookupSource::open(const GenerateRequest& request,
                                                  int /*sample_index*/,
                                                  std::span<const int32_t> /*eos_tokens*/,
                                                  std::span<const int32_t> /*text*/) {
  return std::make_unique<PromptLookup>(PromptLookupOptions{
      .max_positions = static_cast<int>(request.prompt.size()) + request.max_tokens});
}

}  // namespace brigade::runtime
