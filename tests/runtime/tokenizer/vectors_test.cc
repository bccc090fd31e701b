// Real tokenizers against ids computed elsewhere: by the tokenizers library and by llama.cpp.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/files/json.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/support/test_env.h"

namespace brigade::runtime {
namespace {

struct Vector {
  std::string text;
  std::vector<int32_t> ids;
};

std::unique_ptr<Tokenizer> load_or_fail(const std::string& path) {
  auto tokenizer = Tokenizer::load(path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// llama.cpp's form: texts apart by a marker line, ids a line each.
std::vector<Vector> read_inp_out(const std::string& stem) {
  const std::string marker = "\n__ggml_vocab_test__\n";
  const std::string texts = read_text(stem + ".inp");
  std::istringstream lines(read_text(stem + ".out"));
  std::vector<Vector> vectors;
  std::string line;
  for (size_t begin = 0; std::getline(lines, line);) {
    const size_t end = texts.find(marker, begin);
    if (end == std::string::npos) break;
    Vector vector{texts.substr(begin, end - begin), {}};
    std::istringstream numbers(line);
    for (int32_t id; numbers >> id;) vector.ids.push_back(id);
    vectors.push_back(std::move(vector));
    begin = end + marker.size();
  }
  return vectors;
}

// Returns how many vectors agree; reports the others. Also: every text comes back from its ids.
int check_vectors(const Tokenizer& tokenizer, const std::vector<Vector>& vectors) {
  int equal = 0;
  EncodeOptions options;
  options.add_special_tokens = false;
  options.parse_control_tokens = true;
  for (const Vector& vector : vectors) {
    const auto ids = tokenizer.encode(vector.text, options);
    EXPECT_TRUE(ids.ok()) << ids.status();
    if (!ids.ok()) continue;
    EXPECT_THAT(*ids, testing::ElementsAreArray(vector.ids)) << "text: [" << vector.text << "]";
    equal += *ids == vector.ids;
  }
  return equal;
}

struct Case {
  const char* name;
  const char* tokenizer;
  const char* vectors;  // *.json, or the stem of .inp and .out
  int at_least;
};

class Vectors : public testing::TestWithParam<Case> {};

TEST_P(Vectors, IdsAreEqual) {
  BRIGADE_REQUIRE_SHARED_DATA(data);
  const std::string folder = data + "/tokenizers/";
  const auto tokenizer = load_or_fail(folder + GetParam().tokenizer);
  ASSERT_NE(tokenizer, nullptr);
  std::vector<Vector> vectors;
  const std::string path = folder + GetParam().vectors;
  if (path.substr(path.size() - 5) == ".json") {
    const auto file = read_json_file(path);
    ASSERT_TRUE(file.ok()) << file.status();
    for (const auto& entry : *file) {
      vectors.push_back({entry.at("text"), entry.at("ids").get<std::vector<int32_t>>()});
    }
  } else {
    vectors = read_inp_out(path);
  }
  ASSERT_GE(static_cast<int>(vectors.size()), GetParam().at_least);
  const int equal = check_vectors(*tokenizer, vectors);
  std::printf("%s: %d of %zu equal\n", GetParam().name, equal, vectors.size());
}

constexpr Case kCases[] = {
    {"gpt2", "gpt2/tokenizer.json", "vectors/gpt2.json", 60},
    {"qwen3", "qwen3/tokenizer.json", "vectors/qwen3.json", 60},
    {"deepseek_v3", "deepseek_v3/tokenizer.json", "vectors/deepseek_v3.json", 60},
    {"olmo", "olmo/allenai_gpt-neox-olmo-dolma-v1_5.tokenizer.json",
     "vectors/olmo-dolma-v1_5.json", 60},
    {"phi3", "phi3/phi-3.tokenizer.json", "vectors/phi-3.json", 60},
    {"mixtral", "mistral-common/mixtral-8x7b.tokenizer.json", "vectors/mixtral-8x7b.json", 60},
    {"gpt2_llama_cpp", "gpt2/tokenizer.json", "llama.cpp-vocab/ggml-vocab-gpt-2.gguf", 46},
    {"phi3_llama_cpp", "phi3/phi-3.tokenizer.json", "llama.cpp-vocab/ggml-vocab-phi-3.gguf", 46},
    {"qwen2_llama_cpp", "qwen3/tokenizer.json", "llama.cpp-vocab/ggml-vocab-qwen2.gguf", 46},
};

INSTANTIATE_TEST_SUITE_P(Shared, Vectors, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Vectors, Gpt2LongSample) {
  BRIGADE_REQUIRE_SHARED_DATA(data);
  const auto tokenizer = load_or_fail(data + "/tokenizers/gpt2/tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  const auto sample =
      read_json_file(data + "/tokenizers/swift-transformers-vectors/gpt2_encoded_tokens.json");
  ASSERT_TRUE(sample.ok()) << sample.status();
  const std::string text = sample->at("text");
  const auto ids = tokenizer->encode(text);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*ids, sample->at("token_ids").get<std::vector<int32_t>>());
  EXPECT_EQ(tokenizer->decode(*ids), text);
}

}  // namespace
}  // namespace brigade::runtime
