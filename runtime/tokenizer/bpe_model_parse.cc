// Reading of a BPE model from JSON; how it encodes is in bpe_model.cc.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/core/status.h"
#include "runtime/tokenizer/bpe_model.h"
#include "runtime/tokenizer/json_fields.h"
#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxEntries = 4 << 20;  // vocabulary entries, and merges
// An id may pass the number of entries (files have holes), but not so far that the tables by id
// would be mostly empty.
constexpr int64_t kMaxHoles = 65536;

std::string quoted(const std::string& text) {
  return absl::StrCat("\"", text.substr(0, 100), "\"");
}

}  // namespace

absl::StatusOr<BpeModel> BpeModel::parse(const nlohmann::json& value,
                                         const absl::flat_hash_set<int32_t>& never_made,
                                         const std::string& where) {
  RETURN_IF_ERROR(require_object(value, where));
  BpeModel model;
  RETURN_IF_ERROR(model.read_options(value, where));
  RETURN_IF_ERROR(model.read_vocab(value, where));
  if (find_field(value, "unk_token") != nullptr) {
    ASSIGN_OR_RETURN(const std::string unknown, string_field(value, "unk_token", where));
    const auto id = model.token_id(unknown);
    if (!id) return json_error(where, absl::StrCat("unk_token ", quoted(unknown), " is not in vocab"));
    model.unknown_ = *id;
  }
  model.never_made_ = never_made;
  model.index_characters();
  RETURN_IF_ERROR(model.read_merges(value, never_made, where));
  return model;
}

absl::Status BpeModel::read_options(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(check_keys(value,
                             {"type", "dropout", "unk_token", "continuing_subword_prefix",
                              "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                              "vocab", "merges"},
                             where));
  if (value.contains("type")) {
    ASSIGN_OR_RETURN(const std::string type, string_field(value, "type", where));
    if (type != "BPE") {
      return json_error(where, absl::StrCat("model type ", quoted(type), " is not supported"));
    }
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (find_field(value, key) == nullptr) continue;
    ASSIGN_OR_RETURN(const std::string affix, string_field(value, key, where));
    if (!affix.empty()) return json_error(where, absl::StrCat("key \"", key, "\" is not supported"));
  }
  const nlohmann::json* dropout = find_field(value, "dropout");
  if (dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0)) {
    return json_error(where, "key \"dropout\" is not supported: encoding would be random");
  }
  ASSIGN_OR_RETURN(fuse_unknown_, bool_field(value, "fuse_unk", false, where));
  ASSIGN_OR_RETURN(byte_fallback_, bool_field(value, "byte_fallback", false, where));
  ASSIGN_OR_RETURN(ignore_merges_, bool_field(value, "ignore_merges", false, where));
  return absl::OkStatus();
}

absl::Status BpeModel::read_vocab(const nlohmann::json& value, const std::string& where) {
  const nlohmann::json* vocab = find_field(value, "vocab");
  if (vocab == nullptr || !vocab->is_object()) {
    return json_error(where, "key \"vocab\" must be an object");
  }
  if (vocab->empty() || vocab->size() > kMaxEntries) {
    return json_error(where, absl::StrCat("vocab has ", vocab->size(), " entries, allowed are 1 to ",
                                          kMaxEntries));
  }
  const int64_t max_id = static_cast<int64_t>(vocab->size()) + kMaxHoles;
  absl::flat_hash_map<int32_t, const std::string*> owner;
  vocab_.reserve(vocab->size());
  owner.reserve(vocab->size());
  for (const auto& entry : vocab->items()) {
    const nlohmann::json& id = entry.value();
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(max_id)) {
      return json_error(where, absl::StrCat("vocab entry ", quoted(entry.key()),
                                            " must have an id from 0 to ", max_id));
    }
    const auto number = static_cast<int32_t>(id.get<uint64_t>());
    const auto added = vocab_.emplace(entry.key(), number).first;
    const auto first = owner.emplace(number, &vocab->find(entry.key()).key());
    if (!first.second) {
      return json_error(where, absl::StrCat("vocab gives id ", number, " to both ",
                                            quoted(*first.first->second), " and ",
                                            quoted(added->first)));
    }
  }
  return absl::OkStatus();
}

void BpeModel::index_characters() {
  for (char32_t code = 0; code < short_characters_.size(); ++code) {
    std::string character;
    append_utf8(code, &character);
    const auto id = token_id(character);
    short_characters_[code] = id && !never_made_.contains(*id) ? *id : -1;
  }
  for (int byte = 0; byte < 256; ++byte) {
    fallback_[byte] = token_id(absl::StrFormat("<0x%02X>", byte)).value_or(-1);
  }
}

absl::Status BpeModel::add_merge(const std::string& left, const std::string& right,
                                 const absl::flat_hash_set<int32_t>& never_made,
                                 const std::string& where) {
  const auto left_id = token_id(left);
  const auto right_id = token_id(right);
  const auto result = token_id(left + right);
  if (!left_id || !right_id || !result) {
    const std::string& missing = !left_id ? left : !right_id ? right : left + right;
    return json_error(where, absl::StrCat(quoted(missing), " is not in vocab"));
  }
  const auto rank = static_cast<int32_t>(merges_.size());
  merges_.push_back({*left_id, *right_id, *result});
  // A pair listed twice has its later rank, as in the reference library.
  if (!never_made.contains(*result)) rank_of_pair_[pair_key(*left_id, *right_id)] = rank;
  return absl::OkStatus();
}

absl::Status BpeModel::read_merges(const nlohmann::json& value,
                                   const absl::flat_hash_set<int32_t>& never_made,
                                   const std::string& where) {
  ASSIGN_OR_RETURN(const nlohmann::json* merges, array_field(value, "merges", where));
  if (merges->size() > kMaxEntries) {
    return json_error(where, absl::StrCat(merges->size(), " merges, limit is ", kMaxEntries));
  }
  merges_.reserve(merges->size());
  rank_of_pair_.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); ++i) {
    const nlohmann::json& merge = (*merges)[i];
    const std::string place = absl::StrCat(where, ".merges[", i, "]");
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        return json_error(place, "must be two tokens with one space between them");
      }
      RETURN_IF_ERROR(add_merge(text.substr(0, space), text.substr(space + 1), never_made, place));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      RETURN_IF_ERROR(add_merge(merge[0].get_ref<const std::string&>(),
                                merge[1].get_ref<const std::string&>(), never_made, place));
    } else {
      return json_error(place, "must be \"left right\" or [\"left\", \"right\"]");
    }
  }
  return absl::OkStatus();
}

}  // namespace brigade::runtime
