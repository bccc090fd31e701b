// brigade bench: replays prompts or an arrival trace and reports throughput and latencies.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"
#include "launcher/bench/load_generator.h"
#include "launcher/bench/workload.h"
#include "launcher/cli/request_flags.h"
#include "launcher/cli/verb.h"
#include "launcher/exit_codes.h"
#include "launcher/interrupt.h"
#include "launcher/wait_ready.h"

namespace brigade::launcher {
namespace {

constexpr absl::Duration kStatusLimit = absl::Seconds(5);

struct BenchFlags {
  ConnectOptions connect;
  RequestFlags request;
  WorkloadOptions workload;
  LoadOptions load;
  double wait_ready_seconds = 0;
  bool json = false;
};

absl::Status run(const BenchFlags& flags) {
  const std::atomic<bool>& interrupted = interrupt_flag();
  if (flags.workload.prompts_file.empty() == flags.workload.trace_file.empty()) {
    return absl::InvalidArgumentError("--prompts, --trace: give one of them");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::create(flags.connect));
  if (flags.wait_ready_seconds > 0) {
    RETURN_IF_ERROR(wait_until_ready(*client, absl::Now() + absl::Seconds(flags.wait_ready_seconds),
                                     interrupted));
  }
  ASSIGN_OR_RETURN(const v1::GetStatusResponse status, client->status(absl::Now() + kStatusLimit));
  v1::GenerateRequest common;
  RETURN_IF_ERROR(fill_request(flags.request, &common));
  ASSIGN_OR_RETURN(std::vector<Arrival> arrivals,
                   read_workload(flags.workload, status.model(), common));
  const LoadReport report = replay(*client, std::move(arrivals), flags.load, interrupted);
  std::fputs((flags.json ? report_json(report) : report_table(report)).c_str(), stdout);
  if (interrupted) return absl::CancelledError("interrupted");
  if (report.failed > 0) {
    return absl::UnknownError(absl::StrCat(report.failed, " of ", report.requests,
                                           " requests failed; the first: ", report.first_error));
  }
  return absl::OkStatus();
}

}  // namespace

Verb add_bench_verb(CLI::App& root) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* app = root.add_subcommand("bench", "Replay prompts or an arrival trace, report speed");
  app->add_option(
      "--prompts", flags->workload.prompts_file,
      "Prompts: .jsonl with a field prompt, text, instruction or turns; else one a line");
  app->add_option("--trace", flags->workload.trace_file,
                  "Arrivals: CSV TIMESTAMP,ContextTokens,GeneratedTokens, or .jsonl with timestamp "
                  "(ms), input_length, output_length");
  app->add_option("--requests", flags->workload.max_requests, "Replay so many requests; 0: all")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--max-prompt-tokens", flags->workload.max_prompt_tokens,
                  "Cut longer prompts of a trace; 0: only what the context demands")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--concurrency,-c", flags->load.concurrency, "Requests in flight at most")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--rate", flags->load.rate,
                  "With a trace: its speed (2: twice as fast); with prompts: requests per second; "
                  "0: as fast as --concurrency allows")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--timeout", flags->load.timeout_seconds, "Seconds for one request")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--wait-ready", flags->wait_ready_seconds,
                  "Wait so many seconds for a server that starts or loads")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--json", flags->json, "The report as JSON");
  add_request_flags(*app, &flags->request);
  add_connect_flags(*app, &flags->connect);
  app->footer(std::string("Examples:\n"
                          "  brigade bench --prompts prompts.jsonl -c 8 --max-tokens 64\n"
                          "  brigade bench --trace trace.csv --rate 4 --requests 200 --json\n\n") +
              kExitCodesHelp);
  return {app, [flags] { return report(run(*flags)); }};
}

}  // namespace brigade::launcher
