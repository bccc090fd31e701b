#include "runtime/files/json.h"

#include <sys/stat.h>

#include <fstream>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;

// First pass: only looks. Keeps one key set per open object; refuses depth and duplicates before a
// single value is stored.
class LimitChecker : public nlohmann::json_sax<json> {
 public:
  explicit LimitChecker(int max_depth) : max_depth_(max_depth) {}
  const std::string& problem() const { return problem_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override {
    keys_.emplace_back();
    return enter();
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(size_t) override { return enter(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    problem_ = absl::StrCat("key \"", name.substr(0, 200), "\" appears twice in one object");
    return false;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (problem_.empty()) problem_ = absl::StrCat("not valid JSON at byte ", position);
    return false;
  }

 private:
  bool enter() {
    if (++depth_ <= max_depth_) return true;
    problem_ = absl::StrCat("nested deeper than ", max_depth_, " levels");
    return false;
  }

  int max_depth_;
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;
  std::string problem_;
};

}  // namespace

absl::StatusOr<json> parse_json(std::string_view text, const std::string& name,
                                const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", text.size(), " bytes of JSON, limit is ",
                                                   limits.max_bytes));
  }
  LimitChecker checker(limits.max_depth);
  if (!json::sax_parse(text.begin(), text.end(), &checker)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", checker.problem()));
  }
  json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(name, ": not valid JSON"));
  return value;
}

absl::StatusOr<json> read_json_file(const std::string& path, const JsonLimits& limits) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  if (static_cast<size_t>(info.st_size) > limits.max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", info.st_size, " bytes of JSON, limit is ", limits.max_bytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(info.st_size), '\0');
  if (!file.read(text.data(), info.st_size)) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  }
  return parse_json(text, path, limits);
}

}  // namespace brigade::runtime
