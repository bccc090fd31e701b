#include "cluster_file/problems.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace brigade::cluster_file {
namespace {

// What the file says is repeated in sentences; it must not break the line or steer a terminal.
std::string on_one_line(std::string text) {
  for (char& c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

}  // namespace

void Problems::add(Place place, std::string key, std::string sentence) {
  if (found_.size() == kMax) {
    ++more_;
    return;
  }
  found_.push_back({place, on_one_line(std::move(key)), on_one_line(std::move(sentence))});
}

absl::Status Problems::status() const {
  if (found_.empty()) return absl::OkStatus();
  std::vector<Problem> sorted = found_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Problem& a, const Problem& b) {
    return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
  });
  std::string text;
  for (const Problem& problem : sorted) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", file_, ":", problem.place.line, ":",
                    problem.place.column, ": ", problem.key, problem.key.empty() ? "" : ": ",
                    problem.sentence);
  }
  if (more_ > 0) absl::StrAppend(&text, "\n", file_, ": and ", more_, " more");
  return absl::InvalidArgumentError(text);
}

Place Places::of(std::string key) const {
  while (!key.empty()) {
    if (const auto found = places_.find(key); found != places_.end()) return found->second;
    const size_t cut = key.find_last_of(".[");
    key.resize(cut == std::string::npos ? 0 : cut);
  }
  return {};
}

}  // namespace brigade::cluster_file
