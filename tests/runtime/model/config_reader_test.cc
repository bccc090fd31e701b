#include "runtime/model/config_reader.h"

#include <cmath>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/files/json.h"
#include "tests/support/test_env.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::runtime {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tests::ModelFolder;
using tests::tiny_llama_config;
using tests::tiny_mixtral_config;

// `changes` merged into `config`, a null removing its key.
json with(json config, const json& changes) {
  config.merge_patch(changes);
  return config;
}

absl::StatusOr<ConfigReading> read(const json& config) { return read_config(config, nullptr, "m"); }

std::string refusal(const json& config) {
  const auto reading = read(config);
  if (reading.ok()) return "accepted";
  EXPECT_THAT(std::string(reading.status().message()), HasSubstr("m/config.json: "));
  return std::string(reading.status().message());
}
std::string llama_refusal(const json& changes) {
  return refusal(with(tiny_llama_config(), changes));
}
std::string mixtral_refusal(const json& changes) {
  return refusal(with(tiny_mixtral_config(), changes));
}

TEST(ConfigReader, ReadsALlama) {
  const auto reading = read(tiny_llama_config());
  ASSERT_TRUE(reading.ok()) << reading.status();
  const ModelSpec& spec = reading->spec;
  EXPECT_EQ(spec.family, "llama");
  EXPECT_EQ(spec.attention.head_dim, 4);
  EXPECT_DOUBLE_EQ(spec.attention.scale, 0.5);
  EXPECT_EQ(spec.rope.rotary_dim, 4);
  EXPECT_EQ(spec.rope.factor, 1);
  EXPECT_EQ(spec.num_layers(), 2);
  EXPECT_FALSE(spec.layers[0].moe);
  EXPECT_THAT(spec.eos_tokens, ElementsAre(2));
  EXPECT_EQ(spec.bos_token, 1);
  EXPECT_THAT(reading->notes, IsEmpty());
}

TEST(ConfigReader, ReadsAMixtral) {
  const auto reading = read(with(tiny_mixtral_config(), {{"sliding_window", 32}, {"head_dim", 6}}));
  ASSERT_TRUE(reading.ok()) << reading.status();
  const ModelSpec& spec = reading->spec;
  ASSERT_TRUE(spec.layers[1].moe);
  EXPECT_EQ(spec.layers[1].moe->rule.num_experts, 12);
  EXPECT_EQ(spec.layers[1].moe->rule.top_k, 2);
  EXPECT_TRUE(spec.layers[1].moe->rule.renormalize);
  EXPECT_EQ(spec.layers[1].moe->ffn, 4);
  EXPECT_EQ(spec.attention.window, 32);
  EXPECT_EQ(spec.attention.head_dim, 6);
  const auto off =
      read(with(tiny_mixtral_config(), {{"sliding_window", 32}, {"use_sliding_window", false}}));
  ASSERT_TRUE(off.ok()) << off.status();
  EXPECT_EQ(off->spec.attention.window, 0);
}

// A key left out takes the value that the family's reference takes.
TEST(ConfigReader, AbsentKeysTakeTheFamilysDefaults) {
  const json absent = {{"num_key_value_heads", nullptr},
                       {"rms_norm_eps", nullptr},
                       {"rope_theta", nullptr},
                       {"max_position_embeddings", nullptr},
                       {"tie_word_embeddings", nullptr}};
  const auto llama = read(with(tiny_llama_config(), absent));
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->spec.attention.kv_heads, 2);
  EXPECT_EQ(llama->spec.norm_eps, 1e-6);
  EXPECT_EQ(llama->spec.rope.theta, 1e4);
  EXPECT_FALSE(llama->spec.tied_embeddings);
  const auto mixtral = read(
      with(with(tiny_mixtral_config(), absent), {{"num_attention_heads", 8}, {"head_dim", 4}}));
  ASSERT_TRUE(mixtral.ok()) << mixtral.status();
  EXPECT_EQ(mixtral->spec.attention.kv_heads, 8);
  EXPECT_EQ(mixtral->spec.norm_eps, 1e-5);
  EXPECT_EQ(mixtral->spec.rope.theta, 1e6);
}

TEST(ConfigReader, GenerationConfigAddsEosAndSamplingDefaults) {
  const json generation = {{"eos_token_id", {2, 5}}, {"bos_token_id", 3}, {"do_sample", true},
                           {"temperature", 0.6},     {"top_p", 0.9},      {"top_k", 40}};
  const auto reading = read_config(tiny_llama_config(), &generation, "m");
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_THAT(reading->spec.eos_tokens, ElementsAre(2, 5));
  EXPECT_EQ(reading->spec.bos_token, 1);
  EXPECT_EQ(reading->spec.default_temperature, 0.6);
  EXPECT_EQ(reading->spec.default_top_k, 40);
  const json greedy = {{"do_sample", false}, {"temperature", 0.6}};
  EXPECT_EQ(read_config(tiny_llama_config(), &greedy, "m")->spec.default_temperature, 0.0);
  const json bad = {{"eos_token_id", {2, 16}}};
  EXPECT_THAT(std::string(read_config(tiny_llama_config(), &bad, "m").status().message()),
              AllOf(HasSubstr("m/generation_config.json: eos_token_id holds 16")));
}

json llama3_rope(const char* type_key) {
  return {{type_key, "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 32}};
}

// sgl-project/sglang pull 26187: three spellings of one setting, one of which was not read.
TEST(ConfigReader, RopeSpellingsMeanTheSame) {
  json parameters = llama3_rope("rope_type");
  parameters["rope_theta"] = 20000.0;
  for (const json& spelling :
       {json{{"rope_theta", 20000.0}, {"rope_scaling", llama3_rope("type")}},
        json{{"rope_theta", 20000.0}, {"rope_scaling", llama3_rope("rope_type")}},
        json{{"rope_theta", nullptr}, {"rope_parameters", parameters}},
        json{{"rope_theta", 20000.0}, {"rope_parameters", parameters}},
        json{{"rope_theta", 20000.0},
             {"rope_parameters", parameters},
             {"rope_scaling", llama3_rope("type")}}}) {
    const auto reading = read(with(tiny_llama_config(), spelling));
    ASSERT_TRUE(reading.ok()) << reading.status();
    EXPECT_EQ(reading->spec.rope.theta, 20000.0);
    EXPECT_EQ(reading->spec.rope.factor, 8.0);
    EXPECT_EQ(reading->spec.rope.high_freq_factor, 4.0);
    EXPECT_EQ(reading->spec.rope.original_max_positions, 32);
  }
  json plain = tiny_llama_config();
  plain["rope_scaling"] = nullptr;
  EXPECT_EQ(read(plain)->spec.rope.factor, 1);
  plain["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000}};
  plain.erase("rope_theta");
  EXPECT_EQ(read(plain)->spec.rope.theta, 500000);
}

TEST(ConfigReader, RopeThatIsNotImplementedIsRefusedByName) {
  EXPECT_THAT(llama_refusal({{"rope_scaling", {{"rope_type", "zzz"}}}}),
              AllOf(HasSubstr("rope_scaling: rope_type \"zzz\""), HasSubstr("default, llama3")));
  EXPECT_THAT(llama_refusal({{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4}}}}),
              HasSubstr("rope_parameters: rope_type \"yarn\""));
  EXPECT_THAT(llama_refusal({{"rope_scaling", {{"rope_type", "llama3"}}}}),
              HasSubstr("factor is missing"));
  EXPECT_THAT(llama_refusal({{"rope_scaling", with(llama3_rope("type"), {{"beta_fast", 32}})}}),
              HasSubstr("beta_fast is not a setting of rope type \"llama3\""));
  EXPECT_THAT(
      llama_refusal({{"rope_scaling", with(llama3_rope("type"), {{"rope_type", "default"}})}}),
      HasSubstr("disagree"));
  EXPECT_THAT(llama_refusal({{"rope_scaling", with(llama3_rope("type"), {{"factor", "8"}})}}),
              HasSubstr("factor is \"8\", not a number"));
  EXPECT_THAT(
      llama_refusal({{"rope_scaling", with(llama3_rope("type"), {{"low_freq_factor", 4}})}}),
      HasSubstr("high_freq_factor must be greater"));
  EXPECT_THAT(llama_refusal({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}}),
              HasSubstr("rope_theta is given as 10000 and as 500000"));
  EXPECT_THAT(llama_refusal({{"rope_parameters", {{"rope_type", "default"}}},
                             {"rope_scaling", llama3_rope("type")}}),
              HasSubstr("disagree"));
  EXPECT_THAT(
      llama_refusal({{"rope_scaling", {{"type", "default"}, {"partial_rotary_factor", 0.5}}}}),
      HasSubstr("partial_rotary_factor other than 1"));
  EXPECT_THAT(llama_refusal({{"rope_scaling", "llama3"}}), HasSubstr("not an object"));
  EXPECT_THAT(llama_refusal({{"head_dim", 5}}), HasSubstr("head_dim is 5, which is odd"));
}

// AtomicBot-ai/atomic-llama-cpp-turboquant pull 67: trained clamp limits were ignored by every
// port.
TEST(ConfigReader, KeysThatChangeTheMathsAreRefusedByName) {
  for (const json& change :
       {json{{"mlp_bias", true}}, json{{"sliding_window", 4096}}, json{{"clip_qkv", 8.0}},
        json{{"quantization_config", {{"quant_method", "fp8"}}}}, json{{"logits_scaling", 6.0}},
        json{{"embedding_multiplier", 12.0}}, json{{"attention_chunk_size", 8192}},
        json{{"expert_swiglu_limit_list", {7.0}}}, json{{"swiglu_limit", 7.0}},
        json{{"final_logit_softcapping", 30.0}}, json{{"use_qk_norm", true}},
        json{{"num_local_experts", 8}}, json{{"partial_rotary_factor", 0.5}},
        json{{"layer_types", {"full_attention", "sliding_attention"}}},
        json{{"some_new_clamp", 1.5}}, json{{"kv_lora_rank", 512}},
        json{{"text_config", {{"a", 1}}}}, json{{"is_encoder_decoder", true}}}) {
    const std::string key = change.begin().key();
    EXPECT_THAT(llama_refusal(change), AllOf(HasSubstr(key), HasSubstr("changes the maths")))
        << key;
  }
  for (const json& change : {json{{"norm_topk_prob", false}}, json{{"scoring_func", "sigmoid"}},
                             json{{"attention_bias", true}}, json{{"routed_scaling_factor", 2.5}},
                             json{{"n_group", 8}}, json{{"n_shared_experts", 1}},
                             json{{"mlp_only_layers", {3}}}, json{{"first_k_dense_replace", 1}}}) {
    const std::string key = change.begin().key();
    EXPECT_THAT(mixtral_refusal(change), AllOf(HasSubstr(key), HasSubstr("changes the maths")))
        << key;
  }
}

TEST(ConfigReader, TheSameKeysWithNeutralValuesAreFine) {
  const auto reading =
      read(with(tiny_llama_config(), {{"mlp_bias", false},
                                      {"pretraining_tp", 1},
                                      {"attention_dropout", 0.0},
                                      {"logits_scaling", 1.0},
                                      {"partial_rotary_factor", 1.0},
                                      {"use_cache", true},
                                      {"torch_dtype", "bfloat16"},
                                      {"layer_types", {"full_attention", "full_attention"}},
                                      {"pruned_heads", json::object()},
                                      {"is_decoder", false},
                                      {"use_qk_norm", false},
                                      {"router_jitter_noise", 0.1}}));
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_THAT(reading->notes, IsEmpty());
  EXPECT_EQ(
      mixtral_refusal({{"norm_topk_prob", true}, {"scoring_func", "softmax"}, {"n_group", 1}}),
      "accepted");
}

TEST(ConfigReader, UnknownKeysAreListedOnce) {
  const auto reading = read(with(tiny_llama_config(), {{"zebra", 1}, {"my_note", "x"}}));
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_THAT(reading->notes,
              ElementsAre(AllOf(HasSubstr("m/config.json"), HasSubstr("my_note, zebra"))));
}

TEST(ConfigReaderHostile, FieldsAndBoundsAreNamed) {
  EXPECT_THAT(llama_refusal({{"model_type", "qwen9"}}),
              HasSubstr("model_type \"qwen9\" is not a supported family"));
  EXPECT_THAT(llama_refusal({{"model_type", nullptr}}), HasSubstr("model_type is missing"));
  EXPECT_THAT(llama_refusal({{"model_type", {1}}}),
              HasSubstr("model_type is a list of 1, not a string"));
  EXPECT_THAT(llama_refusal({{"architectures", {"LlamaForSequenceClassification"}}}),
              HasSubstr("architectures is \"LlamaForSequenceClassification\""));
  EXPECT_THAT(llama_refusal({{"hidden_act", "gelu"}}), HasSubstr("hidden_act \"gelu\""));
  EXPECT_THAT(llama_refusal({{"hidden_size", nullptr}}), HasSubstr("hidden_size is missing"));
  EXPECT_THAT(llama_refusal({{"hidden_size", 0}}), HasSubstr("hidden_size is 0, outside"));
  EXPECT_THAT(llama_refusal({{"hidden_size", -8}}), HasSubstr("hidden_size is -8, outside"));
  EXPECT_THAT(llama_refusal({{"hidden_size", 8.0}}),
              HasSubstr("hidden_size is 8.0, not an integer"));
  EXPECT_THAT(llama_refusal({{"hidden_size", "8"}}), HasSubstr("not an integer"));
  EXPECT_THAT(llama_refusal({{"vocab_size", uint64_t{1} << 63}}),
              HasSubstr("vocab_size is 9223372036854775808"));
  EXPECT_THAT(llama_refusal({{"num_hidden_layers", 1'000'000'000}}),
              HasSubstr("num_hidden_layers is 1000000000"));
  EXPECT_THAT(llama_refusal({{"num_attention_heads", 3}, {"num_key_value_heads", 3}}),
              HasSubstr("hidden_size 8 is not a multiple of num_attention_heads 3"));
  EXPECT_THAT(llama_refusal({{"num_attention_heads", 4}, {"num_key_value_heads", 3}}),
              HasSubstr("num_key_value_heads 3 does not divide"));
  EXPECT_THAT(llama_refusal({{"eos_token_id", 16}}),
              HasSubstr("eos_token_id is 16, outside 0 to 15"));
  EXPECT_THAT(llama_refusal({{"tie_word_embeddings", 1}}),
              HasSubstr("tie_word_embeddings is 1, not true or false"));
  EXPECT_THAT(mixtral_refusal({{"num_experts_per_tok", 13}}),
              HasSubstr("num_experts_per_tok is 13, more than"));
  EXPECT_THAT(mixtral_refusal({{"num_local_experts", 1 << 30}}),
              HasSubstr("num_local_experts is 1073741824"));
  EXPECT_THAT(llama_refusal({{"rope_theta", 0}}), HasSubstr("rope_theta is 0, outside"));
  EXPECT_THAT(std::string(read(json::array()).status().message()),
              HasSubstr("m/config.json is a list of 0 where an object was expected"));
}

TEST(ConfigReaderHostile, FilesAreBounded) {
  const ModelFolder folder;
  const auto sentence = [&] { return std::string(read_config(folder.path()).status().message()); };
  EXPECT_THAT(sentence(), HasSubstr("config.json: no such file"));
  folder.write("config.json", std::string(100'000, '['));
  EXPECT_THAT(sentence(), AllOf(HasSubstr("config.json: "), HasSubstr("nested deeper than 64")));
  folder.write("config.json", std::string(R"({"a":1,"a":2})"));
  EXPECT_THAT(sentence(), HasSubstr("\"a\" appears twice"));
  folder.write("config.json", "{\"a\":\"" + std::string(10'000'000, 'x') + "\"}");
  EXPECT_THAT(sentence(), HasSubstr("bytes of JSON, limit is 1048576"));
  folder.write_json("config.json", tiny_llama_config());
  folder.write("generation_config.json", std::string("[]"));
  EXPECT_THAT(sentence(), HasSubstr("generation_config.json is a list of 0"));
  folder.write("generation_config.json", std::string("{"));
  EXPECT_THAT(sentence(), HasSubstr("generation_config.json: not valid JSON"));
}

// Published configurations: ours parse, every other family is refused by its name.
TEST(ConfigReader, PublishedConfigs) {
  BRIGADE_REQUIRE_SHARED_DATA(data);
  int accepted = 0, refused = 0;
  for (const auto& file : std::filesystem::directory_iterator(data + "/configs")) {
    if (file.path().extension() != ".json") continue;
    const auto config = read_json_file(file.path().string());
    ASSERT_TRUE(config.ok()) << config.status();
    const std::string family = config->value("model_type", "");
    const auto reading = read(*config);
    if (family == "llama" || family == "mixtral") {
      ASSERT_TRUE(reading.ok()) << file.path() << ": " << reading.status();
      EXPECT_THAT(reading->notes, IsEmpty());
      ++accepted;
    } else {
      EXPECT_THAT(std::string(reading.status().message()),
                  HasSubstr(family.empty() ? "model_type is missing" : "\"" + family + "\""));
      ++refused;
    }
  }
  EXPECT_GE(accepted, 3);
  EXPECT_GE(refused, 20);
}

TEST(ConfigReader, CountsOfPublishedModels) {
  BRIGADE_REQUIRE_SHARED_DATA(data);
  const auto counts = [&](const std::string& file) {
    const auto config = read_json_file(data + "/configs/" + file);
    const ModelSpec spec = read(*config)->spec;
    return std::pair(spec.parameters_total(), spec.parameters_active());
  };
  // As published: 46.7 G with 12.9 G active counting the embedding, and 8.03 G.
  const auto [total, active] = counts("mistralai--Mixtral-8x7B-v0.1.json");
  EXPECT_EQ(total, 46'702'792'704);
  EXPECT_EQ(active, 12'879'925'248 - 32000 * 4096 + 4096);
  EXPECT_EQ(counts("meta-llama--Meta-Llama-3.1-8B.json").first, 8'030'261'248);
}

}  // namespace
}  // namespace brigade::runtime
