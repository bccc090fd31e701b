// Speculation measured inside one process: the engine over a real target on one compute thread, a
// draft worker's real engine on another, joined without a wire. What is compared runs in turns;
// medians count. Drafts are the draft model's own or, at the same cost, right for a given share of
// positions.
//
//   draft_bench runahead PROMPTS   drafting ahead against the same system made to draft between
//                                  passes: speed, wait for drafts, how many were made early
//   draft_bench grid PROMPTS       acceptance x streams x depth, off and auto
//   draft_bench rest PROMPTS       auto with drafts that never pay, against off
//
// PROMPTS: JSON lines with a key "prompt". Flags: --model, --draft (folders), --tokens N,
// --seconds S (the longest it may take).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "runtime/engine/engine.h"
#include "runtime/model/load_model.h"
#include "tests/bench/known_text_draft.h"
#include "tests/support/draft_worker_thread.h"

namespace brigade::bench {
namespace {

using runtime::SpeculationMode;
using Text = std::vector<int32_t>;

constexpr int kStreams = 16, kBlockSize = 16, kContext = 256;

struct Options {
  std::string what, prompts;
  std::string model = "models/demo/target", draft = "models/demo/draft";
  int tokens = 64;
  double seconds = 240;
};

template <typename T>
T value_of(absl::StatusOr<T> result) {
  if (result.ok()) return *std::move(result);
  std::fprintf(stderr, "draft_bench: %s\n", std::string(result.status().message()).c_str());
  std::exit(2);
}

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const bool more = i + 1 < count;
    if (word == "--model" && more) {
      options.model = words[++i];
    } else if (word == "--draft" && more) {
      options.draft = words[++i];
    } else if (word == "--tokens" && more) {
      options.tokens = std::atoi(words[++i]);
    } else if (word == "--seconds" && more) {
      options.seconds = std::atof(words[++i]);
    } else {
      (options.what.empty() ? options.what : options.prompts) = word;
    }
  }
  return options;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Loaded {
  std::unique_ptr<kernels::Device> device;
  runtime::LoadedModel model;
};

Loaded load(const std::string& folder, int logit_rows) {
  Loaded loaded;
  loaded.device = value_of(kernels::Device::create(kernels::DeviceKind::kCpu, 1));
  runtime::LoadOptions options;
  options.kv = {.block_size = kBlockSize, .num_blocks = kStreams * kContext / kBlockSize};
  options.limits = {.max_rows = 256,
                    .max_sequences = kStreams,
                    .max_blocks = kContext / kBlockSize,
                    .max_logit_rows = logit_rows};
  options.max_context = kContext;
  loaded.model = value_of(runtime::load_model(folder, *loaded.device, options));
  return loaded;
}

// What is asked of every system in the same way.
struct Work {
  std::vector<Text> prompts;
  std::vector<Text> texts;  // prompts with their answers
  int tokens = 0;
};

struct Speed {
  double tokens_per_second = 0;  // while decoding, all streams together
  double tokens = 0, passes = 0;
};

struct SystemOptions {
  double acceptance = -1;  // below 0: the draft's own
  bool ahead = true;       // false: drafts only between passes, and each is waited for
};

// One engine with its draft worker.
class System {
 public:
  System(const Options& options, const runtime::Tokenizer& tokenizer, const Work& work,
         const SystemOptions& how)
      : links_({.tokenizer = &tokenizer}),
        target_(load(options.model, 256)),
        draft_(load(options.draft, kStreams)),
        known_(*draft_.model.passes.front(), draft_.model.kv->geometry(), how.acceptance) {
    if (how.acceptance >= 0) {
      for (const Text& text : work.texts) known_.learn(text);
    }
    worker_.emplace(
        links_, tests::DraftWorkerThreadOptions{
                    .model = &known_,
                    .tokenizer = &tokenizer,
                    .kv = draft_.model.kv->geometry(),
                    .engine = {.limits = {.vocab = tokenizer.vocab_size(), .max_context = kContext},
                               .max_sequences = kStreams}});
    runtime::RemoteDraftsOptions drafts;
    drafts.limits = {.vocab = tokenizer.vocab_size(), .max_positions = kContext};
    if (!how.ahead) drafts.window = 0;
    runtime::EngineParts parts;
    parts.models.push_back(std::move(target_.model.passes.front()));
    parts.kv = target_.model.kv->geometry();
    parts.drafts = std::make_unique<tests::ThreadDraftSource>(links_, drafts, *worker_, !how.ahead);
    engine_ = value_of(runtime::Engine::create({}, std::move(parts)));
    engine_->start();
    while (!engine_->status().ready) absl::SleepFor(absl::Milliseconds(1));
  }

  // `streams` prompts from `first` on, at once. `mode`: 0 off, above 0 a depth, -1 auto.
  Speed run(Work* work, int first, int streams, int mode) {
    std::vector<std::shared_ptr<runtime::TokenStream>> answers;
    for (int i = 0; i < streams; ++i) {
      runtime::GenerateRequest request;
      request.prompt = work->prompts[index(*work, first + i)];
      request.max_tokens = work->tokens;
      request.stop.ignore_eos = true;
      request.use_prefix_cache = false;
      request.speculation = {.mode = mode == 0  ? SpeculationMode::kOff
                                     : mode < 0 ? SpeculationMode::kAuto
                                                : SpeculationMode::kFixed,
                             .depth = std::max(mode, 0)};
      answers.push_back(value_of(engine_->submit(request)));
    }
    Speed speed;
    for (int i = 0; i < streams; ++i)
      read(*answers[static_cast<size_t>(i)], work, first + i, &speed);
    return speed;
  }

  runtime::GeneratorStatus status() const { return engine_->status(); }

 private:
  static size_t index(const Work& work, int i) {
    return static_cast<size_t>(i) % work.prompts.size();
  }

  // The first answer to a prompt becomes its text; all others must begin it.
  void read(runtime::TokenStream& stream, Work* work, int i, Speed* speed) {
    Text text = work->prompts[index(*work, i)];
    while (auto event = value_of(stream.next(absl::Now() + absl::Minutes(1)))) {
      if (event->token) text.push_back(*event->token);
      if (event->finish == runtime::FinishReason::kNone) continue;
      const double decode = absl::ToDoubleSeconds(event->total - event->first_token);
      speed->tokens_per_second += (event->usage.completion_tokens - 1) / decode;
      speed->tokens += event->usage.completion_tokens;
      speed->passes += event->usage.target_passes;
    }
    Text& known = work->texts[index(*work, i)];
    if (known.empty()) known = text;
    if (std::equal(text.begin(), text.end(), known.begin())) return;
    std::fprintf(stderr, "draft_bench: an answer has other words\n");
    std::exit(1);
  }

  runtime::DraftLinks links_;
  Loaded target_, draft_;
  KnownTextDraft known_;
  std::optional<tests::DraftWorkerThread> worker_;
  std::unique_ptr<runtime::Engine> engine_;
};

// Speeds of one thing that is compared.
struct Series {
  std::string name;
  System* system = nullptr;
  int mode = 0;
  std::vector<double> speeds, shares;  // shares: of the first series, in the same turn
  double tokens = 0, passes = 0;
};

// One turn of each, in changing order.
void take_turns(std::vector<Series>* all, Work* work, int turn, int streams) {
  std::vector<double> speeds(all->size());
  for (size_t i = 0; i < all->size(); ++i) {
    const size_t which = (i + static_cast<size_t>(turn)) % all->size();
    Series& series = (*all)[which];
    const Speed speed = series.system->run(work, turn * streams, streams, series.mode);
    speeds[which] = speed.tokens_per_second;
    series.tokens += speed.tokens;
    series.passes += speed.passes;
  }
  for (size_t i = 0; i < all->size(); ++i) {
    (*all)[i].speeds.push_back(speeds[i]);
    (*all)[i].shares.push_back(speeds[i] / speeds[0]);
  }
}

std::string name_of(int mode) {
  return mode == 0 ? "off" : mode < 0 ? "auto" : absl::StrCat("depth ", mode);
}

void run_ahead(const Options& options, const runtime::Tokenizer& tokenizer, Work* work) {
  std::printf(
      "| drafts | drafting | tokens/s | of off | tokens a pass | wait for drafts, of step time | "
      "made ignorant of the verdict before | of those here before it |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const double acceptance : {-1.0, 0.9}) {
    System ahead(options, tokenizer, *work, {.acceptance = acceptance, .ahead = true});
    System between(options, tokenizer, *work, {.acceptance = acceptance, .ahead = false});
    std::vector<Series> all = {{"off", &ahead, 0, {}, {}},
                               {"between passes", &between, 4, {}, {}},
                               {"ahead", &ahead, 4, {}, {}}};
    const absl::Time end = absl::Now() + absl::Seconds(options.seconds / 2);
    for (int turn = 0; turn < 100 && absl::Now() < end; ++turn) take_turns(&all, work, turn, 1);
    for (const Series& series : all) {
      const runtime::GeneratorStatus status = series.system->status();
      const runtime::DraftingStatus& drafting = status.drafting;
      const double drafted = static_cast<double>(std::max<int64_t>(1, status.drafted_tokens));
      std::printf("| %s | %s | %.0f | %.2f | %.2f |", acceptance < 0 ? "its own" : "0.9 right",
                  series.name.c_str(), median(series.speeds), median(series.shares),
                  series.tokens / series.passes);
      if (series.mode == 0) {
        std::printf(" - | - | - |\n");
        continue;
      }
      std::printf(" %.1f %% | %.2f | %.2f |\n",
                  100 * drafting.wait_seconds / (drafting.wait_seconds + drafting.step_seconds),
                  static_cast<double>(drafting.run_ahead_drafts) / drafted,
                  static_cast<double>(drafting.early_drafts) / drafted);
    }
    std::printf("%zu turns\n", all[0].speeds.size());
  }
}

void grid(const Options& options, const runtime::Tokenizer& tokenizer, Work* work) {
  const std::vector<double> acceptances = {0.3, 0.6, 0.9};
  const std::vector<int> widths = {1, 4, 16}, modes = {0, 1, 2, 4, 8, -1};
  std::printf("| acceptance | streams | off, tokens/s |");
  for (size_t i = 1; i < modes.size(); ++i) std::printf(" %s |", name_of(modes[i]).c_str());
  std::printf(" auto, of the best other | turns |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const double acceptance : acceptances) {
    for (const int streams : widths) {
      System system(options, tokenizer, *work, {.acceptance = acceptance});
      std::vector<Series> all;
      for (const int mode : modes) all.push_back({name_of(mode), &system, mode, {}, {}});
      const double cells = static_cast<double>(acceptances.size() * widths.size());
      const absl::Time end = absl::Now() + absl::Seconds(options.seconds / cells);
      int turn = 0;
      for (; turn < 3 || absl::Now() < end; ++turn) take_turns(&all, work, turn, streams);
      std::printf("| %.1f | %d | %.0f |", acceptance, streams, median(all[0].speeds));
      double best = 1;
      for (size_t i = 1; i < all.size(); ++i) {
        std::printf(" %.2f |", median(all[i].shares));
        if (all[i].mode > 0) best = std::max(best, median(all[i].shares));
      }
      std::printf(" %.2f | %d |\n", median(all.back().shares) / best, turn);
      std::fflush(stdout);
    }
  }
}

void rest(const Options& options, const runtime::Tokenizer& tokenizer, Work* work) {
  std::printf(
      "| streams | off, tokens/s | auto, of off | drafts a token | turns "
      "|\n|---|---|---|---|---|\n");
  for (const int streams : {1, 4, 16}) {
    System system(options, tokenizer, *work, {.acceptance = 0});
    std::vector<Series> all = {{"off", &system, 0, {}, {}}, {"auto", &system, -1, {}, {}}};
    // Until it rests.
    for (int turn = 0; turn < 4; ++turn) system.run(work, turn * streams, streams, -1);
    const int64_t before = system.status().drafted_tokens;
    const absl::Time end = absl::Now() + absl::Seconds(options.seconds / 3);
    int turn = 0;
    for (; turn < 200 && absl::Now() < end; ++turn) take_turns(&all, work, turn, streams);
    std::printf("| %d | %.0f | %.3f | %.3f | %d |\n", streams, median(all[0].speeds),
                median(all[1].shares),
                static_cast<double>(system.status().drafted_tokens - before) / all[1].tokens, turn);
    std::fflush(stdout);
  }
}

int run(const Options& options) {
  const auto tokenizer = value_of(runtime::Tokenizer::load(options.model + "/tokenizer.json"));
  Work work;
  std::ifstream file(options.prompts);
  for (std::string line; std::getline(file, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !record.contains("prompt")) continue;
    work.prompts.push_back(value_of(tokenizer->encode(record["prompt"].get<std::string>())));
  }
  if (work.prompts.empty()) {
    std::fprintf(stderr, "draft_bench: no prompts in \"%s\"\n", options.prompts.c_str());
    return 2;
  }
  // The words, and some more for drafts beyond the end.
  work.texts.resize(work.prompts.size());
  work.tokens = options.tokens + 24;
  System(options, *tokenizer, work, {}).run(&work, 0, static_cast<int>(work.prompts.size()), 0);
  work.tokens = options.tokens;
  if (options.what == "grid") {
    grid(options, *tokenizer, &work);
  } else if (options.what == "rest") {
    rest(options, *tokenizer, &work);
  } else {
    run_ahead(options, *tokenizer, &work);
  }
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int count, char** words) {
  return brigade::bench::run(brigade::bench::parse(count, words));
}
