// Decode speed of a real checkpoint through the engine, against the read bandwidth of this machine
// measured in the same run. Rounds are interleaved (ceiling, 1 stream, many streams); medians
// count. Also counts allocations of the step thread and the compute threads over 100 decode steps.
//
//   decode_bench MODEL_DIR [--threads N] [--streams N] [--tokens N] [--rounds N] [--kv f32|bf16]
//                [--top-k N] [--host-policy]
//
// Streams are greedy, with --top-k sampled. --host-policy adds a bias of 0, so that rows of logits
// go to the host and its policy, as they do for requests that look at logits.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/engine/engine.h"
#include "runtime/model/load_model.h"
#include "tests/bench/read_bandwidth.h"

namespace {

// The benchmark's own thread reads tokens and is left out; every other thread is counted.
thread_local bool counted_thread = true;
std::atomic<bool> counting = false;
std::atomic<long> allocations = 0;

void* counted(std::size_t bytes) {
  if (counting.load(std::memory_order_relaxed) && counted_thread) ++allocations;
  if (void* data = std::malloc(bytes)) return data;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }

namespace brigade::bench {
namespace {

using runtime::Engine;
using runtime::GenerateRequest;
using runtime::ModelSpec;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string model;
  int threads = 2, streams = 16, tokens = 64, rounds = 5, prompt = 32;
  int top_k = 0;
  bool host_policy = false;
  kernels::DType kv = kernels::DType::kF32;
};

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const auto is = [&](const char* name) {
      return std::strcmp(words[i], name) == 0 && i + 1 < count;
    };
    if (is("--threads"))
      options.threads = std::atoi(words[++i]);
    else if (is("--streams"))
      options.streams = std::atoi(words[++i]);
    else if (is("--tokens"))
      options.tokens = std::atoi(words[++i]);
    else if (is("--rounds"))
      options.rounds = std::atoi(words[++i]);
    else if (is("--top-k"))
      options.top_k = std::atoi(words[++i]);
    else if (std::strcmp(words[i], "--host-policy") == 0)
      options.host_policy = true;
    else if (is("--kv"))
      options.kv = std::string(words[++i]) == "bf16" ? kernels::DType::kBF16 : kernels::DType::kF32;
    else
      options.model = words[i];
  }
  return options;
}

// Weight bytes that one decode step of one stream reads: everything active but the embedding table,
// of which one row is read.
double active_weight_bytes(const ModelSpec& spec, int bytes_per_weight) {
  double weights = static_cast<double>(spec.parameters_active());
  if (!spec.tied_embeddings) weights -= static_cast<double>(spec.vocab) * spec.hidden;
  return weights * bytes_per_weight;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// Passes a model through and, while asked to, counts the distinct experts that each step's rows
// reach.
class DistinctExperts : public runtime::StepModel {
 public:
  explicit DistinctExperts(std::unique_ptr<runtime::StepModel> model) : model_(std::move(model)) {}
  int vocab() const override { return model_->vocab(); }
  const runtime::StepLimits& limits() const override { return model_->limits(); }
  absl::Status begin(const runtime::StepBatch& batch, kernels::Waker* waker) override {
    if (measuring_) before_ = model_->expert_rows();
    return model_->begin(batch, waker);
  }
  absl::StatusOr<Progress> advance() override {
    auto progress = model_->advance();
    if (measuring_ && !before_.empty() && progress.ok() && *progress == Progress::kDone) count();
    return progress;
  }
  std::span<const float> logits(int index) const override { return model_->logits(index); }
  runtime::RowLaw law(int index) const override { return model_->law(index); }
  absl::Status copy_block(int from, int to) override { return model_->copy_block(from, to); }
  std::vector<std::vector<int64_t>> expert_rows() const override { return model_->expert_rows(); }

  void measure(bool on) { measuring_ = on; }
  // Mean over layers and steps.
  double distinct_per_layer() const {
    return layers_ == 0 ? 0 : static_cast<double>(distinct_) / layers_;
  }

 private:
  void count() {
    const auto after = model_->expert_rows();
    for (size_t layer = 0; layer < after.size(); ++layer) {
      ++layers_;
      for (size_t e = 0; e < after[layer].size(); ++e)
        distinct_ += after[layer][e] > before_[layer][e];
    }
  }

  const std::unique_ptr<runtime::StepModel> model_;
  std::vector<std::vector<int64_t>> before_;
  std::atomic<bool> measuring_ = false;
  std::atomic<long> distinct_ = 0, layers_ = 0;
};

struct Decode {
  double tokens_per_second = 0;
  long allocations = 0;  // over 100 steps, when counted
};

// `streams` requests; the clock runs while all of them decode.
Decode decode(Engine& engine, const Options& options, int vocab, int streams, bool count) {
  std::mt19937 random(7);
  std::vector<std::shared_ptr<runtime::TokenStream>> open;
  for (int s = 0; s < streams; ++s) {
    GenerateRequest request;
    for (int i = 0; i < options.prompt; ++i) request.prompt.push_back(random() % vocab);
    request.max_tokens = options.tokens + 8 + (count ? 120 : 0);
    request.stop.ignore_eos = true;
    request.use_prefix_cache = false;
    request.sampling.temperature = options.top_k > 0 ? 1 : 0;
    request.sampling.top_k = options.top_k;
    if (options.host_policy) request.sampling.logit_bias = {{0, 0.0f}};
    auto stream = engine.submit(std::move(request));
    if (!stream.ok()) {
      std::fprintf(stderr, "submit: %s\n", std::string(stream.status().message()).c_str());
      std::exit(1);
    }
    open.push_back(*std::move(stream));
  }
  const auto take = [&](const std::shared_ptr<runtime::TokenStream>& stream) {
    auto event = stream->next(absl::Now() + absl::Seconds(120));
    if (!event.ok() || !event->has_value() || !(*event)->error.ok()) {
      std::fprintf(stderr, "stream broke\n");
      std::exit(1);
    }
  };
  const auto take_all = [&](int tokens) {
    for (int i = 0; i < tokens; ++i) {
      for (const auto& stream : open) take(stream);
    }
  };
  take_all(8);  // prefill and the first steps of the slowest stream
  Decode result;
  if (count) {
    counting = true;
    take_all(100);
    counting = false;
    result.allocations = allocations.exchange(0);
  }
  const auto start = Clock::now();
  take_all(options.tokens - 8);
  const std::chrono::duration<double> elapsed = Clock::now() - start;
  result.tokens_per_second = streams * (options.tokens - 8) / elapsed.count();
  for (const auto& stream : open) stream->cancel();
  while (!engine.idle()) absl::SleepFor(absl::Milliseconds(1));  // the next round starts empty
  return result;
}

int run(const Options& options) {
  counted_thread = false;
  const auto device = kernels::Device::create(kernels::DeviceKind::kCpu, options.threads);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
    return 2;
  }
  runtime::LoadOptions load;
  load.kv.dtype = options.kv;
  load.kv.memory_bytes = int64_t{1} << 30;
  load.limits = {.max_rows = 128,
                 .max_sequences = options.streams,
                 .max_blocks = 64,
                 .max_logit_rows = options.streams};
  load.max_context = 1024;
  auto model = runtime::load_model(options.model, **device, load);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", std::string(model.status().message()).c_str());
    return 2;
  }
  const ModelSpec& spec = *model->spec;
  runtime::EngineParts parts;
  auto watched = std::make_unique<DistinctExperts>(std::move(model->passes[0]));
  DistinctExperts& distinct = *watched;
  parts.models.push_back(std::move(watched));
  parts.kv = model->kv->geometry();
  runtime::EngineConfig config;
  config.max_running_sequences = options.streams;
  config.stream_capacity = 512;
  auto engine = Engine::create(config, std::move(parts));
  if (!engine.ok()) return 2;
  (*engine)->start();
  while (!(*engine)->status().ready) absl::SleepFor(absl::Milliseconds(5));

  kernels::ThreadPool threads(options.threads);
  // Aligned as the meter's vector loads need it, and touched so that every page is real.
  auto block = kernels::Buffer::allocate(**device, size_t{1} << 30);
  if (!block.ok()) {
    std::fprintf(stderr, "%s\n", std::string(block.status().message()).c_str());
    return 1;
  }
  std::memset(block->data(), 1, block->bytes());
  ColdMemory memory(block->as<uint8_t>(), block->bytes());
  ReadBandwidth ceiling(threads, memory);
  const double step_bytes = active_weight_bytes(spec, 2);
  std::vector<double> bandwidth, one, many, fraction, ratio;
  std::printf(
      "decode of %s: %d threads, %d tokens a stream, weights read per step of one stream %.1f MB\n",
      options.model.c_str(), options.threads, options.tokens, step_bytes / 1e6);
  std::printf("%5s %14s %14s %14s %10s %14s %8s\n", "round", "read GB/s", "1 stream t/s",
              "weights GB/s", "of read", "many t/s", "ratio");
  for (int round = 0; round < options.rounds; ++round) {
    bandwidth.push_back(ceiling.sample());
    one.push_back(decode(**engine, options, spec.vocab, 1, false).tokens_per_second);
    many.push_back(decode(**engine, options, spec.vocab, options.streams, false).tokens_per_second);
    bandwidth.push_back(ceiling.sample());
    const double beside = (bandwidth.end()[-1] + bandwidth.end()[-2]) / 2;
    fraction.push_back(one.back() * step_bytes / 1e9 / beside);
    ratio.push_back(many.back() / one.back());
    std::printf("%5d %14.2f %14.1f %14.2f %10.2f %14.1f %8.2f\n", round, beside, one.back(),
                one.back() * step_bytes / 1e9, fraction.back(), many.back(), ratio.back());
    std::fflush(stdout);
  }
  std::printf(
      "medians: read %.2f GB/s, 1 stream %.1f tokens/s = %.2f GB/s of weights = %.2f of read; "
      "%d streams %.1f tokens/s = %.2f x one\n",
      median(bandwidth), median(one), median(one) * step_bytes / 1e9, median(fraction),
      options.streams, median(many), median(ratio));
  if (model->experts.moe_layers > 0) {
    distinct.measure(true);
    decode(**engine, options, spec.vocab, options.streams, false);
    distinct.measure(false);
    const double expert_bytes = 3.0 * model->experts.hidden * model->experts.ffn * 2;
    const double layers = model->experts.moe_layers;
    const double many_bytes =
        step_bytes + layers * expert_bytes * (distinct.distinct_per_layer() - model->experts.top_k);
    const double bound = options.streams * step_bytes / many_bytes;
    std::printf(
        "a step of %d streams reads %.1f distinct experts a layer = %.0f MB of weights: at the "
        "same "
        "GB/s that is %.2f x one stream; measured %.2f of this bound\n",
        options.streams, distinct.distinct_per_layer(), many_bytes / 1e6, bound,
        median(ratio) / bound);
  }
  for (const int streams : {1, options.streams}) {
    const Decode counted = decode(**engine, options, spec.vocab, streams, true);
    std::printf("allocations in 100 decode steps of %d stream(s): %ld\n", streams,
                counted.allocations);
  }
  (*engine)->stop();
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int count, char** words) {
  const auto options = brigade::bench::parse(count, words);
  if (options.model.empty() || options.tokens < 16) {
    std::fprintf(stderr,
                 "usage: decode_bench MODEL_DIR [--threads N] [--streams N] [--tokens N>=16] "
                 "[--rounds N] [--kv f32|bf16] [--top-k N] [--host-policy]\n");
    return 2;
  }
  return brigade::bench::run(options);
}
