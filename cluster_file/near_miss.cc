#include "cluster_file/near_miss.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace brigade::cluster_file {
namespace {

// Bounds the work on a hostile word.
constexpr size_t kLongestWord = 64;
constexpr size_t kFew = 12;

std::string folded(std::string word) {
  for (char& c : word)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

// Optimal string alignment distance.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before, last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, changed});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
    before = last;
    std::swap(last, now);
  }
  return last[b.size()];
}

}  // namespace

std::string near_miss(const std::string& word, const std::vector<std::string>& known) {
  if (word.size() > kLongestWord) return "";
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t d = distance(folded(word), folded(candidate));
    if (d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  }
  return best;
}

std::string hint(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = near_miss(word, known);
  if (!near.empty()) return absl::StrCat("; did you mean ", near, "?");
  if (known.empty() || known.size() > kFew) return "";
  return absl::StrCat("; known: ", absl::StrJoin(known, ", "));
}

}  // namespace brigade::cluster_file
