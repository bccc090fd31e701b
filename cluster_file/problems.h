// What is wrong in a cluster file, and where. Collected by one thread; the first 20 are kept, in
// the order of the file, and the rest are counted.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace brigade::cluster_file {

// Both from 1.
struct Place {
  int line = 1;
  int column = 1;
};

struct Problem {
  Place place;
  std::string key;  // "workers[1].host"; empty: about the file as a whole
  std::string sentence;
};

class Problems {
 public:
  static constexpr size_t kMax = 20;

  explicit Problems(std::string file) : file_(std::move(file)) {}

  void add(Place place, std::string key, std::string sentence);
  bool empty() const { return found_.empty(); }

  // OK, or INVALID_ARGUMENT with one line each: FILE:LINE:COL: key: sentence.
  absl::Status status() const;

 private:
  const std::string file_;
  std::vector<Problem> found_;
  int more_ = 0;
};

// Where the keys of a file stand, by path.
class Places {
 public:
  void set(const std::string& key, Place place) { places_.emplace(key, place); }

  // Of the key, or else of the nearest one around it that is there.
  Place of(std::string key) const;

 private:
  std::map<std::string, Place> places_;
};

}  // namespace brigade::cluster_file
