#include "runtime/scheduler/scheduler.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

template <typename T>
void erase_one(std::vector<T*>* list, const T* item) {
  const auto at = std::find(list->begin(), list->end(), item);
  CHECK(at != list->end());
  list->erase(at);
}

void insert_by_age(std::vector<ScheduledSequence*>* list, ScheduledSequence* sequence) {
  const auto at = std::upper_bound(list->begin(), list->end(), sequence,
                                   [](auto* a, auto* b) { return older(*a, *b); });
  list->insert(at, sequence);
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, KvBlocks* blocks)
    : config_(config), blocks_(blocks) {
  running_.reserve(config.max_running_sequences);
  preempted_.reserve(config.max_running_sequences);
  decodes_.reserve(config.max_running_sequences);
  prefills_.reserve(config.max_running_sequences);
}

void Scheduler::enqueue(ScheduledRequest* request) {
  CHECK(!request->sequences.empty());
  CHECK(static_cast<int>(request->sequences.size()) <= config_.max_running_sequences);
  CHECK(blocks_->blocks_for(request->max_positions) <= blocks_->total());
  request->number = ++last_number_;
  request->forked = request->sequences.size() == 1;
  requests_.push_back(request);
  queue_.push_back(request);
}

int64_t Scheduler::queued_tokens() const {
  int64_t tokens = 0;
  for (const ScheduledRequest* request : queue_) {
    tokens += static_cast<int64_t>(request->sequences[0]->tokens.size());
  }
  return tokens;
}

void Scheduler::admit(absl::Time now, std::vector<ScheduledRequest*>* started) {
  for (ScheduledSequence* sequence : running_) {
    if (sequence->paused()) has_room(sequence, now);
  }
  for (size_t i = 0; i < preempted_.size();) {
    ScheduledSequence* sequence = preempted_[i];
    if (!has_room(sequence, now)) {  // its reader must come first
      ++i;
      continue;
    }
    if (!take_blocks(sequence)) return;
    erase_one(&preempted_, static_cast<const ScheduledSequence*>(sequence));
    i = 0;  // taking blocks may have added a paused sequence
  }
  while (!queue_.empty()) {
    ScheduledRequest* request = queue_.front();
    if (!start_request(request)) return;
    started->push_back(request);
  }
}

bool Scheduler::start_request(ScheduledRequest* request) {
  const int places = running_sequences() + preempted_sequences() + unforked_siblings_;
  const int wanted = static_cast<int>(request->sequences.size());
  if (places + wanted > config_.max_running_sequences) return false;
  ScheduledSequence* first = request->sequences[0];
  if (!take_blocks(first)) return false;
  queue_.erase(queue_.begin());
  request->started = true;
  unforked_siblings_ += wanted - 1;
  for (ScheduledSequence* sequence : request->sequences) {
    sequence->cached_tokens = first->computed;
    if (sequence->state == SequenceState::kEnded && sequence != first) --unforked_siblings_;
  }
  return true;
}

bool Scheduler::protected_from_preemption(const ScheduledSequence& sequence) const {
  return sequence.preemptions >= config_.max_preemptions && !sequence.paused();
}

int Scheduler::active_sequences() const {
  return static_cast<int>(
      std::count_if(running_.begin(), running_.end(), [](const auto* s) { return !s->paused(); }));
}

// Blocks for every known token, a found prefix among them; for a sequence that was preempted often,
// all that it can come to need. Beyond those, one block is left to each sequence that runs already,
// since it would take it back soon.
bool Scheduler::take_blocks(ScheduledSequence* sequence) {
  CHECK(sequence->blocks.empty());
  const ScheduledRequest& request = *sequence->request;
  const int known = static_cast<int>(sequence->tokens.size());
  int wanted = blocks_->blocks_for(known);
  if (sequence->preemptions >= config_.max_preemptions) {
    wanted = std::max(wanted, blocks_->blocks_for(request.max_positions));
  }
  PrefixChain chain = 0;
  if (request.use_prefix_cache && !request.tainted) {
    // The last token must run: its logits are wanted.
    const int most = (known - 1) / blocks_->block_size();
    chain = blocks_->match(request.salt, sequence->tokens, most, &sequence->blocks);
  }
  const int found = static_cast<int>(sequence->blocks.size());
  while (blocks_->available() < wanted - found + active_sequences()) {
    ScheduledSequence* victim = find_victim(nullptr);
    if (victim == nullptr) {
      give_blocks_back(sequence);
      return false;
    }
    preempt(victim);
  }
  while (static_cast<int>(sequence->blocks.size()) < wanted) {
    sequence->blocks.push_back(blocks_->allocate());
  }
  sequence->chain = chain;
  sequence->committed_blocks = found;
  sequence->computed = found * blocks_->block_size();
  sequence->state = SequenceState::kRunning;
  sequence->last_step = counters_.steps;
  counters_.prefix_hit_tokens += sequence->computed;
  insert_by_age(&running_, sequence);
  return true;
}

void Scheduler::give_blocks_back(ScheduledSequence* sequence) {
  // The end first: prefixes are evicted from their end.
  while (!sequence->blocks.empty()) {
    blocks_->release(sequence->blocks.back());
    sequence->blocks.pop_back();
  }
  sequence->computed = 0;
  sequence->committed_blocks = 0;
  sequence->chain = 0;
}

void Scheduler::preempt(ScheduledSequence* victim) {
  CHECK(victim->state == SequenceState::kRunning && !victim->in_flight);
  give_blocks_back(victim);
  victim->state = SequenceState::kPreempted;
  ++victim->preemptions;
  ++counters_.preemptions;
  erase_one(&running_, victim);
  insert_by_age(&preempted_, victim);
}

// Whose blocks to take for `taker` (null: for a sequence that waits): the youngest paused one, else
// the youngest that is younger than the taker.
ScheduledSequence* Scheduler::find_victim(const ScheduledSequence* taker) const {
  for (const bool paused : {true, false}) {
    if (!paused && taker == nullptr) break;
    for (auto at = running_.rbegin(); at != running_.rend(); ++at) {
      ScheduledSequence* candidate = *at;
      if (candidate == taker || candidate->in_flight || candidate->run_alone) continue;
      if (candidate->paused() != paused) continue;
      if (paused) return candidate;
      if (!older(*taker, *candidate)) break;
      if (!protected_from_preemption(*candidate)) return candidate;
    }
  }
  return nullptr;
}

int Scheduler::allocate_for(const ScheduledSequence& taker) {
  while (true) {
    if (const int block = blocks_->allocate(); block >= 0) return block;
    ScheduledSequence* victim = find_victim(&taker);
    if (victim == nullptr) return -1;
    preempt(victim);
  }
}

void Scheduler::confirm(ScheduledSequence* sequence) {
  const ScheduledRequest& request = *sequence->request;
  if (!request.use_prefix_cache || request.tainted) return;
  const int size = blocks_->block_size();
  while ((sequence->committed_blocks + 1) * size <= sequence->computed) {
    const int index = sequence->committed_blocks++;
    const std::span<const int32_t> tokens(sequence->tokens.data() + size_t(index) * size, size);
    const int block = sequence->blocks[index];
    sequence->chain = blocks_->commit(block, sequence->chain, request.salt, tokens);
  }
}

void Scheduler::append(ScheduledSequence* sequence, int32_t token) {
  CHECK(sequence->state == SequenceState::kRunning && sequence->remaining() == 0);
  sequence->tokens.push_back(token);
}

void Scheduler::fork(const ScheduledSequence& first, ScheduledSequence* sibling) {
  CHECK(first.request == sibling->request && sibling->state == SequenceState::kQueued);
  CHECK(first.state == SequenceState::kRunning && first.remaining() == 0);
  sibling->tokens.assign(first.tokens.begin(), first.tokens.end());
  const int used = blocks_->blocks_for(first.computed);
  for (int i = 0; i < used; ++i) {
    blocks_->hold(first.blocks[i]);
    sibling->blocks.push_back(first.blocks[i]);
  }
  sibling->computed = first.computed;
  sibling->committed_blocks = first.committed_blocks;
  sibling->chain = first.chain;
  sibling->last_step = first.last_step;
  sibling->state = SequenceState::kRunning;
  --unforked_siblings_;
  insert_by_age(&running_, sibling);
}

void Scheduler::repeat_alone(ScheduledSequence* sequence) {
  CHECK(sequence->state == SequenceState::kRunning && sequence->remaining() == 0);
  --sequence->computed;
  sequence->run_alone = true;
}

void Scheduler::end(ScheduledSequence* sequence) {
  switch (sequence->state) {
    case SequenceState::kQueued:
      if (sequence->request->started) {
        --unforked_siblings_;
      } else if (sequence == sequence->request->sequences[0]) {
        erase_one(&queue_, static_cast<const ScheduledRequest*>(sequence->request));
      }
      break;
    case SequenceState::kRunning:
      erase_one(&running_, static_cast<const ScheduledSequence*>(sequence));
      if (!sequence->in_flight) give_blocks_back(sequence);
      break;
    case SequenceState::kPreempted:
      erase_one(&preempted_, static_cast<const ScheduledSequence*>(sequence));
      break;
    case SequenceState::kEnded:
      return;
  }
  sequence->state = SequenceState::kEnded;
}

void Scheduler::leave(ScheduledRequest* request) {
  for (const ScheduledSequence* sequence : request->sequences) {
    CHECK(sequence->state == SequenceState::kEnded && !sequence->in_flight);
    CHECK(sequence->blocks.empty());
  }
  erase_one(&requests_, static_cast<const ScheduledRequest*>(request));
}

void Scheduler::find_expired(absl::Time now, std::vector<Expiry>* expired) const {
  for (ScheduledRequest* request : requests_) {
    if (request->deadline <= now) {
      expired->push_back({request, ExpiryKind::kDeadline});
    } else if (!request->started) {
      if (request->submitted + config_.queue_timeout <= now) {
        expired->push_back({request, ExpiryKind::kQueueTimeout});
      }
    } else {
      for (const ScheduledSequence* sequence : request->sequences) {
        if (sequence->state == SequenceState::kEnded) continue;
        if (sequence->paused_since + config_.reader_timeout > now) continue;
        expired->push_back({request, ExpiryKind::kReaderTimeout});
        break;
      }
    }
  }
}

absl::Time Scheduler::next_expiry() const {
  absl::Time next = absl::InfiniteFuture();
  for (const ScheduledRequest* request : requests_) {
    next = std::min(next, request->deadline);
    if (!request->started) {
      next = std::min(next, request->submitted + config_.queue_timeout);
      continue;
    }
    for (const ScheduledSequence* sequence : request->sequences) {
      if (sequence->state == SequenceState::kEnded) continue;
      next = std::min(next, sequence->paused_since + config_.reader_timeout);
    }
  }
  return next;
}

}  // namespace brigade::runtime
