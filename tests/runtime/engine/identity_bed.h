// A checkpoint served under given circumstances, and what it answers to a fixed set of probes among
// neighbours. Identity means: the probes' fingerprints are the same under all circumstances.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "runtime/engine/engine.h"
#include "runtime/model/load_model.h"
#include "runtime/speculative/draft_source.h"

namespace brigade::tests {

// Tokens of answers by what was asked (prompt, seed, sample).
using KnownTexts = std::map<std::tuple<std::vector<int32_t>, uint64_t, int>, std::vector<int32_t>>;

// Drafters that know an answer and are right about each of its tokens with probability 0.8; for
// what they do not know they look into the prompt.
std::unique_ptr<runtime::DraftSource> drafts_of(KnownTexts texts, int vocab);

// Everything that must not show in an answer.
struct Circumstances {
  kernels::DeviceKind device = kernels::DeviceKind::kCpu;
  int threads = 1;
  int microbatches = 1;
  int block_size = 16;
  int num_blocks = 64;
  int max_rows = 256;
  int max_sequences = 1;
  int prefill_chunk = 256;
  int max_preemptions = 4;
  bool prefix_cache = false;
  int warm_probes = 0;    // probes asked beforehand, so that their prefixes are found again
  int neighbours = 0;     // other requests beside the probes
  bool together = false;  // probes run at the same time; else one after the other
  int draft_depth = 0;    // 0: no speculation, 9: as depth control likes
  kernels::DType wire_dtype = kernels::DType::kF32;  // this one may show
  uint64_t seed = 0;                                 // of order and neighbours
  std::string describe() const;
};

// Parts of the model that are not the usual ones: experts elsewhere, planted faults.
struct ReplacedParts {
  runtime::ExchangeFactory exchange;
  bool load_experts = true;
  std::function<std::unique_ptr<runtime::StepModel>(std::unique_ptr<runtime::StepModel>)> wrap;
  std::function<std::unique_ptr<runtime::DraftSource>()> drafts;
  std::function<void()> once_ready;      // before the first request
  std::function<void()> before_the_end;  // all is answered, the model still lives
};

struct ProbeOutcome {
  std::vector<uint64_t> fingerprints;  // one a probe: tokens and top-5 log-probability bits
  KnownTexts texts;                    // of the probes
  runtime::GeneratorStatus status;     // at the end
};

class IdentitySubject {
 public:
  // Reads the checkpoint's sizes and makes probes: short and long prompts, some with a common
  // beginning, greedy and at temperature 0.8, one with three sequences; some also without
  // log-probabilities, which must not change their text: run() fails if it does.
  static absl::StatusOr<IdentitySubject> open(const std::string& folder, int longest_prompt = 70);

  const std::string& name() const { return name_; }
  int vocab() const { return vocab_; }
  const std::string& folder() const { return folder_; }
  // The fixed circumstances that all others are compared with: everything alone and at once.
  Circumstances plain() const;
  // `wide`: 16 sequences and more in one step.
  Circumstances random(std::mt19937_64& random, bool wide, bool crowded) const;
  absl::StatusOr<ProbeOutcome> run(const Circumstances& circumstances,
                                   const ReplacedParts& parts = {}) const;

 private:
  absl::StatusOr<std::unique_ptr<runtime::Engine>> start(const Circumstances& circumstances,
                                                         const ReplacedParts& parts,
                                                         kernels::Device& device,
                                                         runtime::LoadedModel* model) const;
  runtime::GenerateRequest neighbour(std::mt19937_64& random) const;

  std::string folder_, name_;
  int vocab_ = 0, longest_prompt_ = 0;
  std::vector<runtime::GenerateRequest> probes_;
};

// How many probes' bits differ.
int count_differences(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b);

// Folder of a committed golden checkpoint, or of the demo model's target.
std::string golden_checkpoint(const std::string& name);
std::string demo_checkpoint();

}  // namespace brigade::tests
