#include "launcher/answer_printer.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "launcher/answer_json.h"

namespace brigade::launcher {
namespace {

// A model's text must not steer the reader's terminal.
std::string without_controls(std::string text) {
  for (char& c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    if (control && c != '\n' && c != '\t') c = ' ';
  }
  return text;
}

const char* reason_name(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return "?";
  }
}

// Of all sequences together. "1: 80 %" is how often the first draft of a pass was accepted.
void print_draft_stats(const std::vector<v1::Finished>& all) {
  v1::Usage sum;
  std::vector<int64_t> drafted_at, accepted_at;
  const auto add = [](const auto& numbers, std::vector<int64_t>* to) {
    to->resize(std::max(to->size(), static_cast<size_t>(numbers.size())));
    for (int i = 0; i < numbers.size(); ++i) (*to)[static_cast<size_t>(i)] += numbers.Get(i);
  };
  for (const v1::Finished& finished : all) {
    const v1::Usage& usage = finished.usage();
    sum.set_drafted_tokens(sum.drafted_tokens() + usage.drafted_tokens());
    sum.set_accepted_drafts(sum.accepted_drafts() + usage.accepted_drafts());
    sum.set_run_ahead_drafts(sum.run_ahead_drafts() + usage.run_ahead_drafts());
    sum.set_draft_wait(sum.draft_wait() + usage.draft_wait());
    add(usage.drafted_by_position(), &drafted_at);
    add(usage.accepted_by_position(), &accepted_at);
  }
  std::fprintf(stderr, "%-22s %lld of %lld accepted, %lld of them run-ahead\n", "drafts",
               static_cast<long long>(sum.accepted_drafts()),
               static_cast<long long>(sum.drafted_tokens()),
               static_cast<long long>(sum.run_ahead_drafts()));
  accepted_at.resize(drafted_at.size());
  std::string line;
  for (size_t i = 0; i < drafted_at.size(); ++i) {
    if (drafted_at[i] == 0) continue;
    absl::StrAppendFormat(
        &line, "%s%d: %.0f %%", line.empty() ? "" : ", ", i + 1,
        100.0 * static_cast<double>(accepted_at[i]) / static_cast<double>(drafted_at[i]));
  }
  std::fprintf(stderr, "%-22s %s\n", "accepted at position", line.c_str());
  std::fprintf(stderr, "%-22s %.2f ms\n", "wait for drafts", 1000 * sum.draft_wait());
}

}  // namespace

AnswerPrinter::AnswerPrinter(PrintOptions options, const v1::GenerateRequest& request)
    : options_(options),
      terminal_(isatty(STDOUT_FILENO) == 1),
      waiting_(!options.json),
      began_(absl::Now()) {
  if (options_.echo && !options_.json && request.has_text()) put(request.text());
  waiting_.show("waiting for the first token");
}

bool AnswerPrinter::put(const std::string& text) {
  if (text.empty()) return true;
  const std::string shown = terminal_ ? without_controls(text) : text;
  ends_in_newline_ = shown.back() == '\n';
  return std::fwrite(shown.data(), 1, shown.size(), stdout) == shown.size() &&
         std::fflush(stdout) == 0;
}

void AnswerPrinter::note(const v1::GenerateResponse& message) {
  if (message.has_started()) started_ = message.started();
  if (message.has_token()) {
    last_token_ = absl::Now();
    if (tokens_++ == 0) first_token_ = last_token_;
  }
  if (message.has_finished()) finished_.push_back(message.finished());
}

bool AnswerPrinter::print(const v1::GenerateResponse& message) {
  note(message);
  if (message.has_token() || message.has_finished()) waiting_.clear();
  return options_.json ? print_json(message) : print_text(message);
}

bool AnswerPrinter::print_json(const v1::GenerateResponse& message) {
  bool open = true;
  if (message.has_started()) open &= put(to_json_line(message.started()));
  if (message.has_token()) open &= put(to_json_line(message.token()));
  if (message.has_finished()) open &= put(to_json_line(message.finished()));
  return open;
}

bool AnswerPrinter::print_text(const v1::GenerateResponse& message) {
  const std::string text = message.token().text() + message.finished().text();
  if (started_.settings().num_sequences() <= 1) return put(text);
  texts_.resize(static_cast<size_t>(started_.settings().num_sequences()));
  const int64_t index =
      message.has_token() ? message.token().sample_index() : message.finished().sample_index();
  if (message.has_token() || message.has_finished()) texts_.at(static_cast<size_t>(index)) += text;
  return true;
}

void AnswerPrinter::retry(const absl::Status& why, absl::Duration delay) {
  if (options_.json) {
    put(retry_json_line(why, delay));
    return;
  }
  waiting_.clear();
  if (!ends_in_newline_ && terminal_) put("\n");
  std::fprintf(stderr, "brigade: %s; trying again in %s\n", std::string(why.message()).c_str(),
               absl::FormatDuration(delay).c_str());
  waiting_.show("waiting for the server");
}

void AnswerPrinter::end(const absl::Status& status, int resumptions) {
  waiting_.clear();
  if (options_.json) {
    if (!status.ok()) put(error_json_line(status));
  } else {
    for (size_t i = 0; i < texts_.size(); ++i) put(absl::StrCat("[", i, "] ", texts_[i], "\n"));
    if (!ends_in_newline_) put("\n");
  }
  if (options_.stats) print_stats(resumptions);
}

void AnswerPrinter::print_stats(int resumptions) const {
  const double total = absl::ToDoubleSeconds(absl::Now() - began_);
  const double decode = tokens_ > 1 ? absl::ToDoubleSeconds(last_token_ - first_token_) : 0;
  std::fprintf(stderr, "%-22s %lld\n", "prompt tokens",
               static_cast<long long>(started_.prompt_tokens()));
  if (!finished_.empty()) {
    std::fprintf(stderr, "%-22s %lld\n", "cached prompt tokens",
                 static_cast<long long>(finished_[0].usage().cached_prompt_tokens()));
  }
  std::fprintf(stderr, "%-22s %lld\n", "tokens", static_cast<long long>(tokens_));
  if (decode > 0) {
    std::fprintf(stderr, "%-22s %.1f\n", "tokens/s", static_cast<double>(tokens_ - 1) / decode);
  }
  if (tokens_ > 0) {
    std::fprintf(stderr, "%-22s %.1f ms\n", "time to first token",
                 absl::ToDoubleMilliseconds(first_token_ - began_));
  }
  std::fprintf(stderr, "%-22s %.2f s\n", "total", total);
  int64_t passes = 0, drafted = 0;
  for (const v1::Finished& finished : finished_) {
    passes += finished.usage().target_passes();
    drafted += finished.usage().drafted_tokens();
  }
  if (passes > 0) {
    std::fprintf(stderr, "%-22s %lld, %.2f tokens each\n", "target passes",
                 static_cast<long long>(passes),
                 static_cast<double>(tokens_) / static_cast<double>(passes));
  }
  if (drafted > 0) print_draft_stats(finished_);
  for (const v1::Finished& finished : finished_) {
    std::fprintf(stderr, "%-22s %s\n", "finish", reason_name(finished.reason()));
  }
  std::fprintf(stderr, "%-22s %llu%s\n", "seed",
               static_cast<unsigned long long>(started_.settings().seed()),
               started_.settings().reproducible() ? "" : " (not reproducible)");
  if (resumptions > 0) std::fprintf(stderr, "%-22s %d\n", "resumed", resumptions);
}

}  // namespace brigade::launcher
