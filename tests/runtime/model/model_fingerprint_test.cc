// Equal files have equal fingerprints wherever they lie; every single difference shows.
#include "runtime/model/model_fingerprint.h"

#include <functional>
#include <set>

#include "gtest/gtest.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;
using tests::TinyTensors;

std::string fingerprint(const json& config, const TinyTensors& tensors) {
  const tests::ModelFolder folder;
  folder.write_json("config.json", config);
  folder.write("model.safetensors", tests::safetensors_bytes(tensors));
  const auto checkpoint = Checkpoint::open(folder.path());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto value = model_fingerprint(**checkpoint);
  EXPECT_TRUE(value.ok()) << value.status();
  return value.value_or("");
}

TEST(ModelFingerprint, SameFilesElsewhereAreTheSame) {
  const std::string first =
      fingerprint(tests::tiny_mixtral_config(), tests::tiny_mixtral_tensors());
  EXPECT_EQ(first.size(), 32u);
  EXPECT_EQ(first.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(fingerprint(tests::tiny_mixtral_config(), tests::tiny_mixtral_tensors()), first);
}

TEST(ModelFingerprint, EveryDifferenceShows) {
  const std::vector<std::function<void(json&, TinyTensors&)>> changes = {
      [](json&, TinyTensors&) {},
      [](json& config, TinyTensors&) { config["rms_norm_eps"] = 3e-6; },
      [](json&, TinyTensors& tensors) { tensors.erase(tensors.begin()); },
      [](json&, TinyTensors& tensors) {  // renamed
        auto node = tensors.extract(tensors.begin());
        node.key() += "x";
        tensors.insert(std::move(node));
      },
      [](json&, TinyTensors& tensors) { tensors.begin()->second.dtype = "I32"; },
      [](json&, TinyTensors& tensors) { tensors.begin()->second.shape.push_back(1); },
      [](json&, TinyTensors& tensors) {  // sampled: tensors are few and small
        tensors.begin()->second.bytes[tensors.begin()->second.bytes.size() / 2] ^= 1;
      },
  };
  std::set<std::string> seen;
  for (const auto& change : changes) {
    json config = tests::tiny_llama_config();
    TinyTensors tensors = tests::tiny_llama_tensors();
    change(config, tensors);
    seen.insert(fingerprint(config, tensors));
  }
  EXPECT_EQ(seen.size(), changes.size());
}

TEST(ModelFingerprint, NeedsAConfig) {
  const tests::ModelFolder folder;
  folder.write("model.safetensors", tests::safetensors_bytes(tests::tiny_llama_tensors()));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto value = model_fingerprint(**checkpoint);
  ASSERT_TRUE(absl::IsNotFound(value.status()));
  EXPECT_NE(std::string(value.status().message()).find("config.json"), std::string::npos);
}

}  // namespace
}  // namespace brigade::runtime
