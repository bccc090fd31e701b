// Finds stop strings in text that arrives in pieces, holding back what could still become a match, so
// that no part of a stop string is shown. The answer does not depend on how the text is cut: the
// match that is complete first ends it; of several complete at the same byte the longest. Owned by one
// sequence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace brigade::runtime {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  // Takes the next piece. Returns text that is safe to show now. With may_stop false a complete
  // match is text like any other (the sequence is still below min_tokens). After a match
  // (matched() not empty) what followed it in the piece is dropped.
  std::string append(std::string_view piece, bool may_stop);
  // What was held back; at the end of a sequence without a match.
  std::string flush();
  const std::string& matched() const { return matched_; }

 private:
  const std::string* complete_match() const;
  size_t held_bytes() const;

  std::vector<std::string> stops_;
  size_t longest_ = 0;
  std::string pending_;
  std::string matched_;
};

}  // namespace brigade::runtime
