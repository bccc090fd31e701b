// brigade generate: sends a prompt, streams the answer.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"
#include "launcher/answer_printer.h"
#include "launcher/cli/request_flags.h"
#include "launcher/cli/verb.h"
#include "launcher/exit_codes.h"
#include "launcher/interrupt.h"
#include "launcher/resumable_generation.h"
#include "launcher/wait_ready.h"

namespace brigade::launcher {
namespace {

constexpr size_t kMaxPromptBytes = 64 << 20;

struct GenerateFlags {
  ConnectOptions connect;
  RequestFlags request;
  std::string prompt, file;
  std::vector<int64_t> tokens;
  PrintOptions print;
  double timeout_seconds = 0;
  double wait_ready_seconds = 0;
  ResumeOptions resume;
};

absl::StatusOr<std::string> read_all(std::istream& stream, const std::string& name) {
  std::string text(std::istreambuf_iterator<char>(stream), {});
  if (stream.bad()) return absl::InvalidArgumentError(absl::StrCat(name, ": cannot be read"));
  if (text.size() > kMaxPromptBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": more than ", kMaxPromptBytes, " bytes"));
  }
  return text;
}

absl::Status fill_prompt(const GenerateFlags& flags, v1::GenerateRequest* request) {
  const int sources = !flags.prompt.empty() + !flags.file.empty() + !flags.tokens.empty();
  if (sources > 1)
    return absl::InvalidArgumentError("--prompt, --file, --tokens: give one of them");
  if (!flags.tokens.empty()) {
    request->mutable_token_ids()->mutable_ids()->Add(flags.tokens.begin(), flags.tokens.end());
    return absl::OkStatus();
  }
  if (!flags.prompt.empty()) {
    request->set_text(flags.prompt);
    return absl::OkStatus();
  }
  if (!flags.file.empty()) {
    std::ifstream file(flags.file, std::ios::binary);
    if (!file) return absl::InvalidArgumentError(absl::StrCat("--file: cannot open ", flags.file));
    ASSIGN_OR_RETURN(*request->mutable_text(), read_all(file, flags.file));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(*request->mutable_text(), read_all(std::cin, "standard input"));
  return absl::OkStatus();
}

absl::Status run(const GenerateFlags& flags) {
  const std::atomic<bool>& interrupted = interrupt_flag();
  v1::GenerateRequest request;
  RETURN_IF_ERROR(fill_request(flags.request, &request));
  RETURN_IF_ERROR(fill_prompt(flags, &request));
  ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::create(flags.connect));
  if (flags.wait_ready_seconds > 0) {
    RETURN_IF_ERROR(wait_until_ready(*client, absl::Now() + absl::Seconds(flags.wait_ready_seconds),
                                     interrupted));
  }
  const absl::Time deadline = flags.timeout_seconds > 0
                                  ? absl::Now() + absl::Seconds(flags.timeout_seconds)
                                  : absl::InfiniteFuture();
  AnswerPrinter printer(flags.print, request);
  ResumableGeneration generation(
      client.get(), std::move(request), flags.resume,
      [&printer](const v1::GenerateResponse& message) { return printer.print(message); },
      [&printer](const absl::Status& why, absl::Duration delay) { printer.retry(why, delay); });
  const absl::Status status = generation.run(deadline, &interrupted);
  printer.end(status, generation.resumptions());
  return status;
}

}  // namespace

Verb add_generate_verb(CLI::App& root) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* app = root.add_subcommand("generate", "Send a prompt and stream the answer");
  app->add_option("--prompt,-p", flags->prompt, "The prompt");
  app->add_option("--file,-f", flags->file, "Read the prompt from this file");
  app->add_option("--tokens", flags->tokens, "The prompt as token ids: 1,2,3")->delimiter(',');
  add_request_flags(*app, &flags->request);
  app->add_flag("--json", flags->print.json, "One JSON object a line for every event");
  app->add_flag("--stats", flags->print.stats, "Counts, speed and settings at the end, on stderr");
  app->add_flag("--echo", flags->print.echo, "Print the prompt before the answer");
  app->add_option("--timeout", flags->timeout_seconds, "Seconds for the whole answer; 0: no limit")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--wait-ready", flags->wait_ready_seconds,
                  "Wait so many seconds for a server that starts or loads")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--retries", flags->resume.max_retries,
                  "How often in a row a broken stream is taken up again")
      ->check(CLI::Range(0, 20))
      ->capture_default_str();
  add_connect_flags(*app, &flags->connect);
  app->footer(
      std::string("Without --prompt, --file and --tokens the prompt is read from stdin.\n"
                  "A stream that breaks is taken up where it stopped, with the same seed.\n\n"
                  "Examples:\n"
                  "  brigade generate -p 'Once upon a time' --temperature 0.7 --stats\n"
                  "  brigade generate -f prompt.txt --max-tokens 200 --stop '\\n\\n' --json\n"
                  "  echo 'The cat' | brigade generate --seed 7\n\n") +
      kExitCodesHelp);
  return {app, [flags] { return report(run(*flags)); }};
}

}  // namespace brigade::launcher
