// An engine whose drafters are scripted: they know the right text of each sequence, because it was
// asked for plainly before, and a request's id says what they make of it. Test thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/speculative/draft_source.h"
#include "runtime/speculative/prompt_lookup.h"
#include "tests/runtime/engine/engine_bed.h"
#include "tests/support/scripted_drafter.h"

namespace brigade::tests {

using runtime::GenerateRequest;
using runtime::SpeculationMode;
using Text = std::vector<int32_t>;

inline constexpr int kVocab = 97;

// Scripted drafters that know the right text of each sequence; a request's id begins with what its
// drafters do.
struct Script {
  char letter;
  DraftScript script;
  double right;
};
inline constexpr Script kScripts[] = {{'R', DraftScript::kRight, 1},
                                      {'W', DraftScript::kWrong, 0},
                                      {'S', DraftScript::kSometimes, 0.8},
                                      {'H', DraftScript::kHostile, 0}};

class Truths {
 public:
  void set(const std::string& id, int sample, Text text) {
    std::lock_guard lock(mutex_);
    texts_[{id.substr(1), sample}] = std::move(text);
  }
  Text get(const std::string& id, int sample) {
    std::lock_guard lock(mutex_);
    return texts_[{id.substr(1), sample}];
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, int>, Text> texts_;
};

class ScriptedSource final : public runtime::DraftSource {
 public:
  explicit ScriptedSource(Truths* truths) : truths_(truths) {}
  std::unique_ptr<runtime::Drafter> open(const GenerateRequest& request, int sample_index,
                                         std::span<const int32_t> eos_tokens,
                                         std::span<const int32_t> text) override {
    if (request.id[0] == 'N') return nullptr;
    if (request.id[0] == 'L') return lookup_.open(request, sample_index, eos_tokens, text);
    for (const Script& script : kScripts) {
      if (script.letter != request.id[0]) continue;
      return std::make_unique<ScriptedDrafter>(
          script.script, truths_->get(request.id, sample_index), kVocab, script.right, text.size());
    }
    return nullptr;
  }

 private:
  Truths* const truths_;
  runtime::PromptLookupSource lookup_;
};

// Without what may differ: cached tokens and preemptions.
inline void expect_equal(const Answer& with, const Answer& plain) {
  EXPECT_EQ(with.status, plain.status);
  ASSERT_EQ(with.samples.size(), plain.samples.size());
  for (size_t i = 0; i < plain.samples.size(); ++i) {
    const SampleAnswer &a = with.samples[i], &b = plain.samples[i];
    EXPECT_EQ(a.tokens, b.tokens) << "sample " << i;
    EXPECT_EQ(a.logprobs, b.logprobs) << "sample " << i;
    EXPECT_EQ(a.finish, b.finish);
    EXPECT_EQ(a.error, b.error);
    EXPECT_EQ(a.usage.prompt_tokens, b.usage.prompt_tokens);
    EXPECT_EQ(a.usage.completion_tokens, b.usage.completion_tokens);
  }
}

// One server with a truth for everything that was asked of it plainly.
class SpeculationBed {
 public:
  explicit SpeculationBed(EngineBedConfig config) : bed_(with_source(std::move(config))) {}

  Answer plain(GenerateRequest request) {
    request.id = "N" + request.id.substr(1);
    request.speculation.mode = SpeculationMode::kOff;
    const Answer answer = bed_.generate(request);
    for (size_t i = 0; i < answer.samples.size(); ++i) {
      Text text = request.prompt;
      // An answer that ended early goes on in the draft: what comes after the end must not show.
      text.insert(text.end(), answer.samples[i].tokens.begin(), answer.samples[i].tokens.end());
      for (int32_t more = 0; more < 12; ++more) text.push_back((text.back() * 7 + more) % kVocab);
      truths_.set(request.id, static_cast<int>(i), text);
    }
    return answer;
  }
  EngineBed& bed() { return bed_; }

 private:
  EngineBedConfig with_source(EngineBedConfig config) {
    config.drafts = [this] { return std::make_unique<ScriptedSource>(&truths_); };
    return config;
  }
  Truths truths_;
  EngineBed bed_;
};

}  // namespace brigade::tests
