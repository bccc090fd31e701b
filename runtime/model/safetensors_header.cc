#include "runtime/model/safetensors_header.h"

#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/model/safetensors.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;

constexpr size_t kMaxNameBytes = 1024;

class HeaderReader : public nlohmann::json_sax<json> {
 public:
  const std::string& problem() const { return problem_; }
  std::vector<HeaderEntry>& entries() { return entries_; }

  bool null() override { return scalar("null"); }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_integer(number_integer_t) override { return scalar("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return scalar("a fraction"); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return fail("binary data"); }
  bool start_object(size_t) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    if (problem_.empty()) problem_ = absl::StrCat("header is not valid JSON at byte ", position);
    return false;
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
  enum class Field { kNone, kDtype, kShape, kOffsets };

  bool fail(const std::string& what) {
    if (problem_.empty()) problem_ = what;
    return false;
  }
  bool fail_here(const std::string& what) {
    return fail(absl::StrCat("tensor \"", current_.name, "\": ", what));
  }
  bool scalar(const std::string& what);
  bool tensor_key(const std::string& name);

  Place place_ = Place::kStart;
  Field field_ = Field::kNone;
  HeaderEntry current_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  bool seen_metadata_ = false;
  std::unordered_set<std::string> names_, metadata_keys_;
  std::vector<HeaderEntry> entries_;
  std::string problem_;
};

bool HeaderReader::scalar(const std::string& what) {
  switch (place_) {
    case Place::kShape:
      return fail_here(absl::StrCat("shape holds ", what));
    case Place::kOffsets:
      return fail_here(absl::StrCat("data_offsets holds ", what));
    case Place::kTensor:
      return fail_here(absl::StrCat(what, " where dtype, shape or data_offsets was expected"));
    case Place::kMetadata:
      return fail(absl::StrCat("__metadata__ holds ", what, ", not a string"));
    case Place::kTop:
      return fail_here(absl::StrCat(what, " where an object was expected"));
    default:
      return fail(absl::StrCat("header holds ", what, " where an object was expected"));
  }
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (place_ == Place::kShape) {
    if (current_.shape.size() >= size_t{kMaxTensorRank}) {
      return fail_here(absl::StrCat("shape has more than ", kMaxTensorRank, " dimensions"));
    }
    if (value > uint64_t{INT64_MAX}) return fail_here(absl::StrCat("shape holds ", value));
    current_.shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  if (place_ == Place::kOffsets) {
    if (current_.offsets.size() >= 2) return fail_here("data_offsets has more than two numbers");
    current_.offsets.push_back(value);
    return true;
  }
  return scalar("a number");
}

bool HeaderReader::string(string_t& value) {
  if (place_ == Place::kMetadata) return true;
  if (place_ != Place::kTensor || field_ != Field::kDtype) return scalar("a string");
  if (safetensors_dtype_bytes(value) == 0) {
    return fail_here(absl::StrCat("unknown dtype \"", value.substr(0, 40), "\""));
  }
  current_.dtype = value;
  return true;
}

bool HeaderReader::start_object(size_t) {
  if (place_ == Place::kStart) {
    place_ = Place::kTop;
    return true;
  }
  if (place_ != Place::kTop) return scalar("an object");
  // key() has set either the metadata flag or the tensor's name.
  place_ = field_ == Field::kNone && current_.name.empty() ? Place::kMetadata : Place::kTensor;
  return true;
}

bool HeaderReader::key(string_t& name) {
  if (name.size() > kMaxNameBytes) {
    return fail(absl::StrCat("a key of ", name.size(), " bytes, limit is ", kMaxNameBytes));
  }
  if (place_ == Place::kMetadata) {
    if (metadata_keys_.insert(name).second) return true;
    return fail(absl::StrCat("__metadata__ has key \"", name, "\" twice"));
  }
  if (place_ == Place::kTensor) return tensor_key(name);
  current_ = HeaderEntry();
  has_dtype_ = has_shape_ = has_offsets_ = false;
  field_ = Field::kNone;
  if (name == "__metadata__") {
    if (std::exchange(seen_metadata_, true)) return fail("__metadata__ appears twice");
    return true;
  }
  if (name.empty()) return fail("a tensor without a name");
  if (!names_.insert(name).second) return fail(absl::StrCat("tensor \"", name, "\" appears twice"));
  current_.name = name;
  return true;
}

bool HeaderReader::tensor_key(const std::string& name) {
  bool* seen = name == "dtype"          ? &has_dtype_
               : name == "shape"        ? &has_shape_
               : name == "data_offsets" ? &has_offsets_
                                        : nullptr;
  if (seen == nullptr) return fail_here(absl::StrCat("unknown key \"", name, "\""));
  if (std::exchange(*seen, true)) return fail_here(absl::StrCat("key \"", name, "\" twice"));
  field_ = seen == &has_dtype_   ? Field::kDtype
           : seen == &has_shape_ ? Field::kShape
                                 : Field::kOffsets;
  return true;
}

bool HeaderReader::end_object() {
  if (place_ == Place::kTop) {
    place_ = Place::kEnd;
    return true;
  }
  if (place_ == Place::kTensor) {
    if (!has_dtype_) return fail_here("dtype is missing");
    if (!has_shape_) return fail_here("shape is missing");
    if (!has_offsets_) return fail_here("data_offsets is missing");
    entries_.push_back(std::move(current_));
  }
  current_ = HeaderEntry();
  place_ = Place::kTop;
  return true;
}

bool HeaderReader::start_array(size_t) {
  if (place_ == Place::kTensor && field_ == Field::kShape) {
    place_ = Place::kShape;
    return true;
  }
  if (place_ == Place::kTensor && field_ == Field::kOffsets) {
    place_ = Place::kOffsets;
    return true;
  }
  return scalar("an array");
}

bool HeaderReader::end_array() {
  if (place_ == Place::kOffsets && current_.offsets.size() != 2) {
    return fail_here(
        absl::StrCat("data_offsets has ", current_.offsets.size(), " numbers, not two"));
  }
  place_ = Place::kTensor;
  return true;
}

}  // namespace

absl::StatusOr<std::vector<HeaderEntry>> parse_safetensors_header(std::string_view json_text,
                                                                  const std::string& file) {
  HeaderReader reader;
  if (!json::sax_parse(json_text.begin(), json_text.end(), &reader)) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", reader.problem()));
  }
  return std::move(reader.entries());
}

}  // namespace brigade::runtime
