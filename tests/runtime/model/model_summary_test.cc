#include "runtime/model/model_summary.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/config_reader.h"
#include "tests/support/test_env.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

OpenedModel open_tiny(const tests::ModelFolder& folder, const nlohmann::json& config,
                      const tests::TinyTensors& tensors) {
  folder.write_json("config.json", config);
  folder.write("model.safetensors", tests::safetensors_bytes(tensors));
  auto opened = open_model(folder.path());
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

TEST(ModelSummary, CountsEveryStoredParameterOnce) {
  const tests::ModelFolder folder;
  const OpenedModel model =
      open_tiny(folder, tests::tiny_mixtral_config(), tests::tiny_mixtral_tensors());
  const ModelSummary s = summarize(model);
  EXPECT_EQ(s.stored_bytes, static_cast<int64_t>(model.checkpoint->total_bytes()));
  EXPECT_EQ(s.parameters_total * 4, s.stored_bytes);
  EXPECT_EQ(s.expert_bytes, 2 * 12 * 3 * 4 * 8 * 4);
  EXPECT_EQ(s.router_bytes, 2 * 12 * 8 * 4);
  // Per layer attention 8*8+2*4*8+8*8, router 96, two experts of 96, norms 16; then output 128,
  // final norm and one row of the embedding 8 each.
  EXPECT_EQ(s.parameters_active, 2 * (192 + 96 + 192 + 16) + 128 + 8 + 8);
  EXPECT_EQ(s.kv_bytes_per_1k_tokens_f32, 1000 * 2 * 2 * 4 * 4);
  EXPECT_EQ(s.kv_bytes_per_1k_tokens_bf16 * 2, s.kv_bytes_per_1k_tokens_f32);
  EXPECT_THAT(s.eos_tokens, ElementsAre(2));
  EXPECT_THAT(s.routing, HasSubstr("softmax over 12 experts, top 2, renormalised"));
  EXPECT_THAT(to_text(s), HasSubstr("2, of them 2 MoE"));
  EXPECT_EQ(to_json(s)["bytes"]["experts"], s.expert_bytes);
}

TEST(ModelSummary, WeightMemoryIsWhatALoadTakes) {
  const std::string golden = tests::source_dir() + "/tests/data/golden/";
  for (const char* name : {"llama_gqa_tied", "llama_attention_bias", "mixtral_odd_sizes"}) {
    const auto opened = open_model(golden + name);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const ModelSummary s = summarize(*opened);
    const auto device = kernels::Device::create(kernels::DeviceKind::kCpu, 1);
    LoadOptions options;
    options.kv.num_blocks = 1;
    options.limits = {.max_rows = 1, .max_sequences = 1, .max_blocks = 1, .max_logit_rows = 1};
    auto loaded = load_model(golden + name, **device, options);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    loaded->passes.clear();
    loaded->kv.reset();
    EXPECT_EQ(s.weight_memory_bytes + s.rope_table_bytes,
              static_cast<int64_t>((*device)->bytes_in_use()))
        << name;
  }
}

// 16 experts top-2 of width 2048 at d 1024, 12 layers: 1.3 G parameters, 215 M active per token.
TEST(ModelSummary, ActiveParametersOfABenchmarkModel) {
  nlohmann::json config = tests::tiny_mixtral_config();
  config.merge_patch({{"hidden_size", 1024},
                      {"num_hidden_layers", 12},
                      {"num_attention_heads", 16},
                      {"num_key_value_heads", 4},
                      {"num_local_experts", 16},
                      {"intermediate_size", 2048},
                      {"vocab_size", 32000}});
  const auto reading = read_config(config, nullptr, "m");
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_NEAR(static_cast<double>(reading->spec.parameters_total()), 1.305e9, 1e6);
  // Per layer: attention, router, two experts, two norms.
  const int64_t layer = 2'621'440 + 16'384 + 12'582'912 + 2'048;
  EXPECT_EQ(reading->spec.parameters_active(), 12 * layer + 32'000 * 1'024 + 2 * 1'024);
}

}  // namespace
}  // namespace brigade::runtime
