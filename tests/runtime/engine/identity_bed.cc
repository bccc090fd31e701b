#include "tests/runtime/engine/identity_bed.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"
#include "tests/runtime/engine/engine_bed.h"
#include "tests/support/scripted_drafter.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

constexpr int kMostTokens = 18;

int pick(std::mt19937_64& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
}

template <typename T>
T one_of(std::mt19937_64& random, std::initializer_list<T> choices) {
  return *(choices.begin() + pick(random, 0, static_cast<int>(choices.size()) - 1));
}

std::vector<runtime::GenerateRequest> make_probes(int vocab, int longest) {
  const std::vector<int32_t> shared = some_prompt(1, longest, vocab);
  std::vector<runtime::GenerateRequest> probes;
  for (const int length : {3, 17, 40, longest}) {
    for (const double temperature : {0.0, 0.8}) {
      auto request = request_of({shared.begin(), shared.begin() + length}, 0);
      const int index = static_cast<int>(probes.size());
      if (index % 3 == 2) request.prompt = some_prompt(10 + index, length, vocab);
      request.max_tokens = 8 + index % 5 * 2;
      request.sampling.temperature = temperature;
      request.sampling.seed = static_cast<uint64_t>(1000 + index);
      request.sampling.seed_from_client = true;
      request.sampling.logprobs = 5;
      request.stop.ignore_eos = true;
      if (index == 3) request.num_sequences = 3;
      probes.push_back(request);
    }
  }
  // Some once more without log-probabilities: their rows come as best tokens or as laws.
  probes[5].sampling.top_k = 40;
  for (const size_t index : {2, 5, 6}) {
    probes.push_back(probes[index]);
    probes.back().sampling.logprobs = -1;
  }
  return probes;
}

class KnownDrafts final : public runtime::DraftSource {
 public:
  KnownDrafts(KnownTexts texts, int vocab) : texts_(std::move(texts)), vocab_(vocab) {}
  std::unique_ptr<runtime::Drafter> open(const runtime::GenerateRequest& request, int sample_index,
                                         std::span<const int32_t> eos_tokens,
                                         std::span<const int32_t> text) override {
    const auto known = texts_.find({request.prompt, request.sampling.seed, sample_index});
    if (known == texts_.end()) return lookup_.open(request, sample_index, eos_tokens, text);
    std::vector<int32_t> truth = request.prompt;
    truth.insert(truth.end(), known->second.begin(), known->second.end());
    return std::make_unique<ScriptedDrafter>(DraftScript::kSometimes, std::move(truth), vocab_, 0.8,
                                             ++opened_);
  }

 private:
  const KnownTexts texts_;
  const int vocab_;
  uint64_t opened_ = 0;
  runtime::PromptLookupSource lookup_;
};

}  // namespace

std::unique_ptr<runtime::DraftSource> drafts_of(KnownTexts texts, int vocab) {
  return std::make_unique<KnownDrafts>(std::move(texts), vocab);
}

int count_differences(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  int differences = 0;
  for (size_t i = 0; i < a.size(); ++i) differences += a[i] != b[i] ? 1 : 0;
  return differences;
}

std::string golden_checkpoint(const std::string& name) {
  return source_dir() + "/tests/data/golden/" + name;
}

std::string demo_checkpoint() { return source_dir() + "/models/demo/target"; }

std::string Circumstances::describe() const {
  return absl::StrCat(device == kernels::DeviceKind::kCpu ? "cpu" : "cpu_async", ", threads ",
                      threads, ", microbatches ", microbatches, ", blocks ", num_blocks, " of ",
                      block_size, ", rows ", max_rows, ", sequences ", max_sequences, ", chunk ",
                      prefill_chunk, ", prefix cache ", prefix_cache, ", warm ", warm_probes,
                      ", neighbours ", neighbours, ", together ", together, ", draft depth ",
                      draft_depth, ", wire ", kernels::dtype_name(wire_dtype), ", seed ", seed);
}

absl::StatusOr<IdentitySubject> IdentitySubject::open(const std::string& folder,
                                                      int longest_prompt) {
  ASSIGN_OR_RETURN(const runtime::OpenedModel model, runtime::open_model(folder));
  IdentitySubject subject;
  subject.folder_ = folder;
  subject.name_ = std::filesystem::path(folder).filename().string();
  subject.vocab_ = model.spec.vocab;
  subject.longest_prompt_ = longest_prompt;
  subject.probes_ = make_probes(model.spec.vocab, longest_prompt);
  return subject;
}

Circumstances IdentitySubject::plain() const { return {.max_sequences = 3}; }

Circumstances IdentitySubject::random(std::mt19937_64& random, bool wide, bool crowded) const {
  Circumstances made;
  made.device = one_of(random, {kernels::DeviceKind::kCpu, kernels::DeviceKind::kCpuAsync});
  made.threads = pick(random, 1, 3);
  made.microbatches = wide ? 1 : pick(random, 1, 3);
  made.block_size = crowded ? one_of(random, {4, 8}) : one_of(random, {8, 16, 32});
  const int longest = (longest_prompt_ + kMostTokens) / made.block_size + 1;
  // Crowded: hardly more than the longest sequence needs, so that blocks run out.
  made.num_blocks = crowded ? longest + pick(random, 1, 2 * longest) : longest * 30;
  made.max_rows = wide ? pick(random, 40, 96) : pick(random, 4, 96);
  made.max_sequences = wide ? 32 : pick(random, crowded ? 6 : 2, 24);
  made.prefill_chunk = pick(random, 1, 64);
  made.max_preemptions = pick(random, 2, 5);
  made.prefix_cache = pick(random, 0, 2) != 0;
  made.warm_probes = made.prefix_cache ? pick(random, 0, 4) : 0;
  made.neighbours = wide ? pick(random, 10, 16) : pick(random, crowded ? 4 : 0, 8);
  made.together = wide || crowded || pick(random, 0, 3) != 0;
  made.draft_depth = pick(random, 0, 9);
  made.seed = random();
  return made;
}

runtime::GenerateRequest IdentitySubject::neighbour(std::mt19937_64& random) const {
  // Half of them begin as the probes do.
  const int seed = pick(random, 0, 1) == 0 ? 1 : pick(random, 100, 1000);
  auto request = request_of(some_prompt(seed, pick(random, 1, longest_prompt_), vocab_),
                            pick(random, 1, kMostTokens));
  request.sampling.temperature = pick(random, 0, 1) == 0 ? 0 : 0.8;
  request.sampling.seed = random();
  request.stop.ignore_eos = true;
  return request;
}

absl::StatusOr<std::unique_ptr<runtime::Engine>> IdentitySubject::start(
    const Circumstances& circumstances, const ReplacedParts& parts, kernels::Device& device,
    runtime::LoadedModel* model) const {
  runtime::LoadOptions options;
  options.kv = {.block_size = circumstances.block_size,
                .num_blocks = circumstances.num_blocks,
                .poison = true};
  options.limits = {.max_rows = circumstances.max_rows,
                    .max_sequences = circumstances.max_sequences,
                    .max_blocks = (longest_prompt_ + kMostTokens) / circumstances.block_size + 1,
                    .max_logit_rows = circumstances.max_sequences + circumstances.draft_depth};
  options.microbatches = circumstances.microbatches;
  options.max_context = longest_prompt_ + kMostTokens + 1;
  options.make_exchange = parts.exchange;
  options.load_experts = parts.load_experts;
  options.wire_dtype = circumstances.wire_dtype;
  ASSIGN_OR_RETURN(*model, runtime::load_model(folder_, device, options));
  runtime::EngineParts engine_parts;
  for (auto& pass : model->passes) {
    std::unique_ptr<runtime::StepModel> step_model = std::move(pass);
    if (parts.wrap) step_model = parts.wrap(std::move(step_model));
    engine_parts.models.push_back(std::move(step_model));
  }
  engine_parts.kv = model->kv->geometry();
  if (parts.drafts) engine_parts.drafts = parts.drafts();
  runtime::EngineConfig config;
  config.max_running_sequences = 48;
  config.prefill_chunk = circumstances.prefill_chunk;
  config.max_preemptions = circumstances.max_preemptions;
  ASSIGN_OR_RETURN(auto engine, runtime::Engine::create(config, std::move(engine_parts)));
  engine->start();
  if (!eventually([&] { return engine->status().ready; })) {
    return absl::UnavailableError(engine->status().not_ready_reason);
  }
  return engine;
}

absl::StatusOr<ProbeOutcome> IdentitySubject::run(const Circumstances& circumstances,
                                                  const ReplacedParts& parts) const {
  ASSIGN_OR_RETURN(const auto device,
                   kernels::Device::create(circumstances.device, circumstances.threads));
  runtime::LoadedModel model;  // outlives the engine
  ASSIGN_OR_RETURN(const auto engine, start(circumstances, parts, *device, &model));
  if (parts.once_ready) parts.once_ready();
  std::mt19937_64 random(circumstances.seed);
  const auto submit = [&](runtime::GenerateRequest request) {
    request.use_prefix_cache = circumstances.prefix_cache;
    const int depth = circumstances.draft_depth;
    request.speculation = {.mode = depth == 0  ? runtime::SpeculationMode::kOff
                                   : depth > 8 ? runtime::SpeculationMode::kAuto
                                               : runtime::SpeculationMode::kFixed,
                           .depth = depth};
    return engine->submit(std::move(request));
  };
  for (int i = 0; i < circumstances.warm_probes; ++i) {
    const auto& probe = probes_[random() % probes_.size()];
    ASSIGN_OR_RETURN(const auto stream, submit(probe));
    RETURN_IF_ERROR(read_answer(*stream, probe.num_sequences).status);
  }
  // Probes (by index) and neighbours (-1) in random order.
  std::vector<int> order;
  for (size_t i = 0; i < probes_.size(); ++i) order.push_back(static_cast<int>(i));
  order.insert(order.end(), static_cast<size_t>(circumstances.neighbours), -1);
  std::shuffle(order.begin(), order.end(), random);
  ProbeOutcome outcome;
  outcome.fingerprints.resize(probes_.size());
  std::vector<std::shared_ptr<runtime::TokenStream>> streams;
  const auto read = [&](size_t i) -> absl::Status {
    const int probe = order[i];
    const Answer answer =
        read_answer(*streams[i], probe < 0 ? 1 : probes_[static_cast<size_t>(probe)].num_sequences);
    if (probe < 0) return answer.status;
    outcome.fingerprints[static_cast<size_t>(probe)] = answer.fingerprint();
    const runtime::GenerateRequest& asked = probes_[static_cast<size_t>(probe)];
    for (size_t sample = 0; sample < answer.samples.size(); ++sample) {
      const auto [known, fresh] =
          outcome.texts.insert({{asked.prompt, asked.sampling.seed, static_cast<int>(sample)},
                                answer.samples[sample].tokens});
      if (fresh || known->second == answer.samples[sample].tokens) continue;
      return absl::InternalError(
          absl::StrCat("probe ", probe, " has another text with log-probabilities than without"));
    }
    return answer.status;
  };
  for (size_t i = 0; i < order.size(); ++i) {
    const bool is_probe = order[i] >= 0;
    ASSIGN_OR_RETURN(auto stream,
                     submit(is_probe ? probes_[static_cast<size_t>(order[i])] : neighbour(random)));
    streams.push_back(std::move(stream));
    if (!circumstances.together && is_probe) RETURN_IF_ERROR(read(i));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    if (circumstances.together || order[i] < 0) RETURN_IF_ERROR(read(i));
  }
  eventually([&] { return engine->idle() && engine->status().kv_blocks_in_use == 0; });
  outcome.status = engine->status();
  if (parts.before_the_end) parts.before_the_end();
  engine->stop();
  return outcome;
}

}  // namespace brigade::tests
