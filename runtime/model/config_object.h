// A JSON object read field by field with range checks: the first fault is kept as a sentence that
// names file and key, later reads return defaults, and the keys that nobody asked for can be
// listed. For one reader on one thread; refers to the JSON value and must not outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace brigade::runtime {

class ConfigObject {
 public:
  // `where` starts every sentence: "dir/config.json" or "dir/config.json: rope_scaling".
  ConfigObject(const nlohmann::json& object, std::string where);

  // Absent and null both give nullopt. A wrong type or a value outside [min, max] is a fault.
  std::optional<int64_t> integer(const std::string& key, int64_t min, int64_t max);
  std::optional<double> number(const std::string& key, double min, double max);
  std::optional<bool> boolean(const std::string& key);
  std::optional<std::string> text(const std::string& key);
  // A number or a list of numbers; absent and null give an empty list.
  std::vector<int64_t> integers(const std::string& key, int64_t min, int64_t max);
  // As integer(); absent is a fault.
  int64_t required_integer(const std::string& key, int64_t min, int64_t max);
  // Null when absent or null; another type than an object is a fault.
  const nlohmann::json* object(const std::string& key);
  // The value whatever its type, or null; counts as read.
  const nlohmann::json* value(const std::string& key);

  // Keeps the first fault.
  void fail(const std::string& key, const std::string& what);
  const absl::Status& status() const { return status_; }
  const std::string& where() const { return where_; }
  std::vector<std::string> unread_keys() const;

 private:
  const nlohmann::json* object_ = nullptr;  // null when the value is not an object
  std::string where_;
  std::set<std::string> read_;
  absl::Status status_;
};

// A short, printable form of a value for a sentence.
std::string brief(const nlohmann::json& value);

}  // namespace brigade::runtime
