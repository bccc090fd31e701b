#include "runtime/model/checkpoint.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using tests::random_f32;
using tests::safetensors_bytes;
using tests::ModelFolder;

constexpr char kIndex[] = "model.safetensors.index.json";

std::string shard_name(int shard) {
  return absl::StrCat("model-0000", shard, "-of-00003.safetensors");
}

// Three shards with one tensor each, "t1" to "t3", and their index.
void write_three_shards(const ModelFolder& folder) {
  json weight_map;
  for (int shard = 1; shard <= 3; ++shard) {
    const std::string tensor = absl::StrCat("t", shard);
    folder.write(shard_name(shard), safetensors_bytes({{tensor, random_f32({4}, shard)}}));
    weight_map[tensor] = shard_name(shard);
  }
  folder.write_json(kIndex, json{{"metadata", {{"total_size", 48}}}, {"weight_map", weight_map}});
}

std::string refusal(const ModelFolder& folder) {
  const auto checkpoint = Checkpoint::open(folder.path());
  if (checkpoint.ok()) return "accepted";
  EXPECT_THAT(std::string(checkpoint.status().message()), HasSubstr(folder.path()));
  return std::string(checkpoint.status().message());
}

TEST(Checkpoint, ReadsASingleFile) {
  const ModelFolder folder;
  folder.write("model.safetensors",
               safetensors_bytes({{"a", random_f32({3}, 1)}, {"b", random_f32({2, 2}, 2)}}));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const CheckpointTensor* b = (*checkpoint)->find("b");
  ASSERT_NE(b, nullptr);
  const std::string expected = random_f32({2, 2}, 2).bytes;
  EXPECT_EQ(b->bytes(), expected.size());
  EXPECT_EQ(std::memcmp(b->data(), expected.data(), expected.size()), 0);
  EXPECT_EQ((*checkpoint)->find("c"), nullptr);
  EXPECT_THAT((*checkpoint)->notes(), IsEmpty());
}

TEST(Checkpoint, ReadsShardsByTheIndex) {
  const ModelFolder folder;
  write_three_shards(folder);
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->num_files(), 3u);
  EXPECT_EQ((*checkpoint)->tensors().size(), 3u);
  EXPECT_EQ((*checkpoint)->total_bytes(), 48u);
}

// sgl-project/sglang pull 32279, vllm-project/vllm pull 38336: a shard that is not there.
TEST(CheckpointHostile, NamesEveryBadShardInOneSentence) {
  const ModelFolder folder;
  write_three_shards(folder);
  folder.remove(shard_name(2));
  EXPECT_THAT(refusal(folder),
              AllOf(HasSubstr(shard_name(2) + " is missing"), HasSubstr("1 of them"),
                    Not(HasSubstr(shard_name(1) + " is"))));
  folder.write(shard_name(3), std::string());
  EXPECT_THAT(refusal(folder),
              AllOf(HasSubstr(shard_name(2) + " is missing"),
                    HasSubstr(shard_name(3) + " is empty"), HasSubstr("2 of them")));
  const std::string whole = safetensors_bytes({{"t1", random_f32({4}, 1)}});
  folder.write(shard_name(1), whole.substr(0, whole.size() - 8));
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr("3 of them"), HasSubstr("reach past the file"),
                                     HasSubstr("cut short")));
  folder.write(shard_name(1), whole.substr(0, 30));
  EXPECT_THAT(refusal(folder), HasSubstr("cut short"));
}

TEST(CheckpointHostile, ARenamedShardIsListedAsPresent) {
  const ModelFolder folder;
  write_three_shards(folder);
  folder.remove(shard_name(2));
  folder.write("model-2.safetensors", safetensors_bytes({{"t2", random_f32({4}, 2)}}));
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr(shard_name(2) + " is missing"),
                                     HasSubstr("present: "), HasSubstr("model-2.safetensors")));
}

// Blaizzy/mlx-vlm pulls 1464 and 1827: a stray file beside the shards was merged in.
TEST(Checkpoint, TheIndexWinsOverAStrayFile) {
  const ModelFolder folder;
  write_three_shards(folder);
  folder.write("model.safetensors", safetensors_bytes({{"t1", random_f32({4}, 77)}}));
  folder.write("broken.safetensors", "never opened");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::string expected = random_f32({4}, 1).bytes;
  EXPECT_EQ(std::memcmp((*checkpoint)->find("t1")->data(), expected.data(), 16), 0);
  EXPECT_THAT((*checkpoint)->notes(),
              ElementsAre(HasSubstr("left alone: broken.safetensors, model.safetensors")));
}

TEST(CheckpointHostile, AStaleIndexListsWhatItWantsAndWhatIsThere) {
  const ModelFolder folder;
  json weight_map;
  for (int i = 1; i <= 5; ++i)
    weight_map[absl::StrCat("t", i)] = absl::StrCat("old-", i, ".safetensors");
  folder.write_json(kIndex, json{{"weight_map", weight_map}});
  folder.write("new-1.safetensors", safetensors_bytes({{"t1", random_f32({4}, 1)}}));
  folder.write("new-2.safetensors", safetensors_bytes({{"t2", random_f32({4}, 1)}}));
  EXPECT_THAT(refusal(folder),
              AllOf(HasSubstr("5 of them"), HasSubstr("old-5.safetensors is missing"),
                    HasSubstr("present: new-1.safetensors, new-2.safetensors")));
}

TEST(CheckpointHostile, IndexAndShardsMustAgree) {
  const ModelFolder folder;
  write_three_shards(folder);
  folder.write(shard_name(3),
               safetensors_bytes({{"t3", random_f32({4}, 3)}, {"extra", random_f32({4}, 4)}}));
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr("\"extra\""), HasSubstr("does not list")));
  folder.write(shard_name(3),
               safetensors_bytes({{"t3", random_f32({4}, 3)}, {"t1", random_f32({4}, 4)}}));
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr("\"t1\""), HasSubstr("places in " + shard_name(1))));
  folder.write(shard_name(3), safetensors_bytes({}));
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr("\"t3\""), HasSubstr("which lacks it")));
}

TEST(CheckpointHostile, IndexFilesThatAreNotIndices) {
  const ModelFolder folder;
  folder.write("secret.safetensors", safetensors_bytes({}));
  for (const char* file : {"../secret.safetensors", "/etc/passwd", "a.bin", ""}) {
    folder.write_json(kIndex, json{{"weight_map", {{"w", file}}}});
    EXPECT_THAT(refusal(folder), AllOf(HasSubstr("weight_map[\"w\"]"), HasSubstr("plain name")));
  }
  folder.write_json(kIndex, json{{"weight_map", {{"w", 7}}}});
  EXPECT_THAT(refusal(folder), HasSubstr("plain name"));
  folder.write_json(kIndex, json{{"weight_map", json::object()}});
  EXPECT_THAT(refusal(folder), HasSubstr("weight_map is missing, empty"));
  folder.write_json(kIndex, json::array({1}));
  EXPECT_THAT(refusal(folder), HasSubstr("weight_map is missing, empty"));
  folder.write(kIndex, std::string(100'000, '['));
  EXPECT_THAT(refusal(folder), HasSubstr("nested deeper than 64"));
  folder.write(kIndex, std::string(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"));
  EXPECT_THAT(refusal(folder), HasSubstr("\"a\" appears twice"));
}

TEST(CheckpointHostile, FoldersWithoutACheckpoint) {
  const ModelFolder folder;
  EXPECT_THAT(refusal(folder), HasSubstr("present: none"));
  folder.write("weights.safetensors", safetensors_bytes({}));
  EXPECT_THAT(refusal(folder), HasSubstr("present: weights.safetensors"));
  folder.write("model.safetensors", std::string());
  EXPECT_THAT(refusal(folder), HasSubstr("the file is empty"));
  const auto missing = Checkpoint::open("/nonexistent/model");
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr("/nonexistent/model: no such folder"));
}

}  // namespace
}  // namespace brigade::runtime
