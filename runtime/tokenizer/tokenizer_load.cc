// Building a Tokenizer from its file; what it does afterwards is in tokenizer.cc.
#include <xxhash.h>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/files/json.h"
#include "runtime/tokenizer/json_fields.h"
#include "runtime/tokenizer/tokenizer.h"

namespace brigade::runtime {
namespace {

absl::Status with_name(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& tokenizer_json_path) {
  ASSIGN_OR_RETURN(const nlohmann::json file, read_json_file(tokenizer_json_path));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  if (absl::Status status = tokenizer->build(file); !status.ok()) {
    return with_name(tokenizer_json_path, status);
  }
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view json_text,
                                                            const std::string& name) {
  ASSIGN_OR_RETURN(const nlohmann::json file, parse_json(json_text, name));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  if (absl::Status status = tokenizer->build(file); !status.ok()) return with_name(name, status);
  return tokenizer;
}

// "truncation" and "padding" are defaults for batches of training examples and are not applied.
absl::Status Tokenizer::build(const nlohmann::json& file) {
  RETURN_IF_ERROR(require_object(file, "top level"));
  RETURN_IF_ERROR(check_keys(file,
                             {"version", "truncation", "padding", "added_tokens", "normalizer",
                              "pre_tokenizer", "post_processor", "decoder", "model"},
                             "top level"));
  const auto part = [&](const char* key) {
    const nlohmann::json* value = find_field(file, key);
    return value == nullptr ? nlohmann::json() : *value;
  };
  ASSIGN_OR_RETURN(added_, parse_added_tokens(part("added_tokens"), "added_tokens"));
  absl::flat_hash_set<int32_t> control_ids;
  for (const AddedToken& token : added_) {
    if (token.control) control_ids.insert(token.id);
  }
  ASSIGN_OR_RETURN(normalizer_, Normalizer::parse(part("normalizer"), "normalizer"));
  ASSIGN_OR_RETURN(pre_tokenizer_, PreTokenizer::parse(part("pre_tokenizer"), "pre_tokenizer"));
  ASSIGN_OR_RETURN(post_processor_, PostProcessor::parse(part("post_processor"), "post_processor"));
  ASSIGN_OR_RETURN(decoder_, TokenDecoder::parse(part("decoder"), "decoder"));
  const nlohmann::json* model = find_field(file, "model");
  if (model == nullptr) return json_error("top level", "key \"model\" is missing");
  ASSIGN_OR_RETURN(model_, BpeModel::parse(*model, control_ids, "model"));
  RETURN_IF_ERROR(build_tokens());
  build_finders();
  hash_vocabulary();
  return absl::OkStatus();
}

absl::Status Tokenizer::build_tokens() {
  constexpr int32_t kMaxHoles = 65536;
  const auto at = [&](int32_t id) -> Token& {
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(id + 1);
    return tokens_[id];
  };
  for (const auto& [content, id] : model_.vocab()) {
    Token& token = at(id);
    token.content = content;
    token.present = true;
  }
  const auto max_id = static_cast<int32_t>(tokens_.size() + added_.size()) + kMaxHoles;
  for (size_t i = 0; i < added_.size(); ++i) {
    const AddedToken& added = added_[i];
    const std::string where = absl::StrCat("added_tokens[", i, "]");
    if (added.id > max_id) return json_error(where, absl::StrCat("id must be at most ", max_id));
    const auto in_vocab = model_.token_id(added.content);
    if (in_vocab && *in_vocab != added.id) {
      return json_error(where, absl::StrCat("has id ", added.id, " but vocab gives it ", *in_vocab));
    }
    Token& token = at(added.id);
    if (token.present && token.content != added.content) {
      return json_error(where, absl::StrCat("id ", added.id, " belongs to another token in vocab"));
    }
    token.content = added.content;
    if (added.normalized) {
      ASSIGN_OR_RETURN(token.content, normalizer_.apply(added.content));
    }
    token.present = true;
    token.special = added.special;
    token.control = added.control;
    id_of_added_.emplace(added.content, added.id);
  }
  for (Token& token : tokens_) {
    if (token.present) token.bytes = decoder_.bytes(token.content, /*first_in_text=*/false);
  }
  for (const auto* ids : {&post_processor_.prefix, &post_processor_.suffix}) {
    for (const int32_t id : *ids) {
      if (!is_token(id)) {
        return json_error("post_processor", absl::StrCat("id ", id, " is not in the vocabulary"));
      }
    }
  }
  return absl::OkStatus();
}

void Tokenizer::build_finders() {
  for (const AddedToken& token : added_) {
    if (!token.normalized || token.control) mixed_finder_.add(&token, token.content);
    if (!token.normalized) {
      raw_finder_.add(&token, token.content);
      continue;
    }
    normalized_finder_.add(&token, tokens_[token.id].content);
  }
}

void Tokenizer::hash_vocabulary() {
  XXH3_state_t* state = XXH3_createState();
  CHECK(state != nullptr);
  XXH3_64bits_reset(state);
  for (const Token& token : tokens_) {
    const uint32_t flags = token.present | token.special << 1 | token.control << 2;
    const uint32_t head[3] = {flags, static_cast<uint32_t>(token.content.size()),
                              static_cast<uint32_t>(token.bytes.size())};
    XXH3_64bits_update(state, head, sizeof(head));
    XXH3_64bits_update(state, token.content.data(), token.content.size());
    XXH3_64bits_update(state, token.bytes.data(), token.bytes.size());
  }
  vocabulary_hash_ = XXH3_64bits_digest(state);
  XXH3_freeState(state);
}

}  // namespace brigade::runtime
