#include "runtime/draft_worker/draft_outbox.h"

#include <algorithm>
#include <utility>

namespace brigade::runtime::draft_worker {
namespace {

template <typename T>
void append(const std::vector<T>& more, std::vector<T>* to) {
  to->insert(to->end(), more.begin(), more.end());
}

// `next` goes on where `chunk` ends, in the same breath.
bool continues(const ChunkMessage& chunk, const ChunkMessage& next) {
  return chunk.epoch == next.epoch && chunk.base_length == next.base_length &&
         chunk.form == next.form &&
         chunk.position + static_cast<int>(chunk.tokens.size()) == next.position;
}

}  // namespace

void DraftOutbox::drafted(const ChunkMessage& chunk) {
  tokens_ += chunk.tokens.size();
  const auto last =
      std::find_if(drafts_.chunks.rbegin(), drafts_.chunks.rend(),
                   [&](const ChunkMessage& other) { return other.sequence == chunk.sequence; });
  if (last == drafts_.chunks.rend() || !continues(*last, chunk)) {
    drafts_.chunks.push_back(chunk);
    return;
  }
  append(chunk.tokens, &last->tokens);
  append(chunk.law_sizes, &last->law_sizes);
  append(chunk.law_tokens, &last->law_tokens);
  append(chunk.law_weights, &last->law_weights);
  append(chunk.margins, &last->margins);
}

std::optional<DraftWorkerSays> DraftOutbox::take() {
  if (!nacks_.empty()) {
    DraftNack nack = std::move(nacks_.front());
    nacks_.pop_front();
    return nack;
  }
  if (drafts_.chunks.empty()) return std::nullopt;
  tokens_ = 0;
  return std::exchange(drafts_, {});
}

void DraftOutbox::clear() {
  nacks_.clear();
  drafts_.chunks.clear();
  tokens_ = 0;
}

}  // namespace brigade::runtime::draft_worker
