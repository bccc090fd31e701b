// The committed tokenizers of tests/data/tokenizer: two base files and variants of them.
#pragma once

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/files/json.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/support/test_env.h"

namespace brigade::tests {

inline nlohmann::json read_case_file(const std::string& name) {
  return *runtime::read_json_file(source_dir() + "/tests/data/tokenizer/" + name);
}

inline const nlohmann::json& cases() {
  static const nlohmann::json file = read_case_file("cases.json");
  return file;
}

// `base` ("byte_level", "sentencepiece") with some top-level keys replaced; in "model", merged.
inline nlohmann::json changed_file(const std::string& base, const nlohmann::json& change) {
  nlohmann::json file = read_case_file(base + ".json");
  for (const auto& entry : change.items()) {
    if (entry.key() == "model") {
      file["model"].update(entry.value());
    } else {
      file[entry.key()] = entry.value();
    }
  }
  return file;
}

inline nlohmann::json variant_file(const nlohmann::json& variant) {
  return changed_file(variant.at("base").get<std::string>(), variant.at("change"));
}

inline std::unique_ptr<runtime::Tokenizer> parse_or_fail(const nlohmann::json& file) {
  auto tokenizer = runtime::Tokenizer::parse(file.dump(), "tokenizer.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

inline std::unique_ptr<runtime::Tokenizer> load_variant(const std::string& name) {
  for (const auto& variant : cases().at("variants")) {
    if (variant.at("name") == name) return parse_or_fail(variant_file(variant));
  }
  ADD_FAILURE() << "no variant " << name;
  return nullptr;
}

}  // namespace brigade::tests
