// SPDX-License-Identifier: Apache-2.0
// The inspect command: keys of the JSON contract, numbers that can be computed by hand, every
// tensor listed, text on one screen.
#include "apps/inspect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <sstream>

#include "model/plan/forecast.h"
#include "model/run/decoder.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::inspect_test {
namespace {

namespace fs = std::filesystem;

struct Result {
  int code = 0;
  std::string text;
};

Result run(InspectOptions options) {
  if (options.folder.empty()) options.folder = bundled_model_dir().string();
  std::ostringstream out;
  Result r;
  r.code = run_inspect(options, out);
  r.text = std::move(out).str();
  return r;
}

Json run_json(InspectOptions options) {
  options.json = true;
  return parse_json(run(options).text, "output");
}

int64_t number(const Json& j, std::string_view key) { return j.find(key)->as_int().value(); }

TEST(Inspect, KeysOfTheContract) {
  const Json j = run_json({});
  for (const char* key : {"architecture", "model_type", "layers", "experts", "top_k", "hidden",
                          "intermediate", "vocab", "params_total", "params_active", "bytes_total",
                          "bits_per_weight", "modules", "unused", "warnings", "memory"})
    EXPECT_NE(j.find(key), nullptr) << key;
  ASSERT_FALSE(j.find("modules")->items().empty());
  for (const Json& m : j.find("modules")->items())
    for (const char* key : {"name", "kind", "scheme", "format", "rule", "shape", "bytes", "count",
                            "supported", "reason"})
      EXPECT_NE(m.find(key), nullptr) << key;
  EXPECT_NE(j.find("memory")->find("weights"), nullptr);
  EXPECT_NE(j.find("memory")->find("kv_per_1k_tokens"), nullptr);
}

TEST(Inspect, NumbersOfTheBundledModel) {
  const Json j = run_json({});
  EXPECT_EQ(j.find("architecture")->as_string(), "Qwen3MoeForCausalLM");
  EXPECT_EQ(number(j, "layers"), 6);
  EXPECT_EQ(number(j, "experts"), 8);
  EXPECT_EQ(number(j, "top_k"), 2);
  EXPECT_EQ(number(j, "hidden"), 384);
  EXPECT_EQ(number(j, "intermediate"), 256);
  EXPECT_EQ(number(j, "vocab"), 4096);
  const int64_t attention = 2 * 384 * 384 + 2 * 128 * 384 + 2 * 384 + 2 * 64, router = 8 * 384,
                expert = 3 * 256 * 384;
  const int64_t outside = 4096 * 384 + 384;  // the head is tied
  EXPECT_EQ(number(j, "params_total"), outside + 6 * (attention + router + 8 * expert));
  EXPECT_EQ(number(j, "params_active"), outside + 6 * (attention + router + 2 * expert));
  EXPECT_EQ(number(*j.find("memory"), "kv_per_1k_tokens"), 1000 * 6 * 2 * 2 * 64 * 2);
  int64_t count = 0, bytes = 0;
  for (const Json& m : j.find("modules")->items()) {
    count += number(m, "count");
    bytes += number(m, "bytes");
    if (m.find("name")->as_string() == "model.layers.*.mlp.experts.*.gate_proj") {
      EXPECT_EQ(number(m, "count"), 48);
      EXPECT_EQ(m.find("scheme")->as_string(), "w4a8");
      EXPECT_EQ(m.find("format")->as_string(), "pack-quantized");
      EXPECT_EQ(m.find("shape")->dump(), "[256, 384]");
      EXPECT_TRUE(contains(m.find("rule")->as_string(), "group_0"));
    }
  }
  EXPECT_EQ(count, 1 + 1 + 6 * (4 + 4 + 1 + 24));
  EXPECT_EQ(bytes, number(j, "bytes_total"));
}

TEST(Inspect, EveryTensorIsListed) {
  InspectOptions o;
  o.tensors = true;
  const Json j = run_json(o);
  EXPECT_EQ(j.find("tensors")->items().size(), 536u);
  for (const Json& t : j.find("tensors")->items())
    EXPECT_TRUE(t.find("module")->is_string()) << t.dump();
  o.folder = (test_data_dir() / "golden" / "gptoss-mxfp4-native").string();
  const Json fused = run_json(o);
  bool found = false;
  for (const Json& t : fused.find("tensors")->items()) {
    if (!contains(t.find("name")->as_string(), "layers.0.mlp.experts.gate_up_proj_blocks"))
      continue;
    found = true;
    const std::string module = t.find("module")->as_string();
    EXPECT_TRUE(contains(module, "experts.*.gate_proj") && contains(module, "experts.*.up_proj"))
        << module;
    EXPECT_EQ(t.find("role")->as_string(), "weight_packed");
  }
  EXPECT_TRUE(found);
}

// Half of the experts fit beside the rest: half of a token's experts come from the disk.
TEST(Inspect, ForecastFromDisk) {
  const Checkpoint checkpoint =
      Checkpoint::open((test_data_dir() / "golden" / "qwen3moe-fp8-dynamic").string());
  ModelPlan plan = plan_model(checkpoint, {}, {});
  const MoeSpec& spec = checkpoint.moe_blocks().front().spec;
  const uint64_t token = 10 * spec.router.top_k, experts = 10 * spec.experts;
  plan.ranks[0].bytes = {{kWeightBytes, std::string(kHostMemory), 100},
                         {kExpertBytes, std::string(kHostMemory), experts}};
  const auto with = [&](uint64_t memory) {
    Rates rates;
    rates.disk = 400;
    rates.memory = memory;
    return forecast(plan, rates);
  };
  const Forecast half = with(100 + experts / 2);
  EXPECT_EQ(half.disk_bytes, token / 2);
  EXPECT_DOUBLE_EQ(half.disk_tokens_per_second, 800.0 / static_cast<double>(token));
  EXPECT_EQ(with(50).disk_bytes, 100 + token);
  EXPECT_EQ(with(100 + experts).disk_bytes, 0u);
}

TEST(Inspect, OneLayer) {
  InspectOptions o;
  o.layer = 2;
  const Json j = run_json(o);
  EXPECT_EQ(j.find("modules")->items().size(), 33u);
  for (const Json& m : j.find("modules")->items())
    EXPECT_TRUE(contains(m.find("name")->as_string(), "model.layers.2."));
  o.layer = 6;
  EXPECT_TRUE(contains(error_of([&] { run(o); }), "no layer 6; the model has layers 0 to 5"));
}

TEST(Inspect, DeepFindsWhatHeadersHide) {
  InspectOptions o;
  o.deep = true;
  EXPECT_EQ(run(o).code, 0);
  o.folder = (test_data_dir() / "negative" / "folders" / "nan-scale").string();
  const Result r = run(o);
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(contains(r.text, "weight_scale[5,0] is nan")) << r.text;
  EXPECT_EQ(run_json(o).find("problems")->items().size(), 1u);
  o.deep = false;
  EXPECT_EQ(run(o).code, 0) << "payloads are not read without --deep";
}

TEST(Inspect, RanksAndUnsupportedModules) {
  InspectOptions o;
  const int64_t all = number(run_json(o), "bytes_total");
  const auto ranks = [&](unsigned tp, unsigned ep) {
    o.tp = tp;
    o.ep = ep;
    const Json j = run_json(o);
    return std::vector<Json>(j.find("ranks")->items().begin(), j.find("ranks")->items().end());
  };
  int64_t experts = 0, bytes = 0;
  for (const Json& r : ranks(1, 3)) experts += number(r, "experts");
  EXPECT_EQ(experts, 8u);
  EXPECT_EQ(ranks(1, 4).size(), 4u);
  for (const Json& r : ranks(2, 1)) {
    EXPECT_LT(number(r, "bytes"), all);
    EXPECT_EQ(number(r, "kv_per_1k_tokens"), 1000 * 6 * 2 * 64 * 2) << "one key-value head of two";
    bytes += number(r, "bytes");
  }
  EXPECT_GE(bytes, all) << "what is not cut is on both";
  o.tp = 1;
  o.ep = 9;
  EXPECT_TRUE(contains(error_of([&] { run(o); }), "8 experts on 9 ranks"));
  o.ep = 0;
  EXPECT_TRUE(contains(error_of([&] { run(o); }), "--ep 0"));
  InspectOptions u;
  u.folder = (test_data_dir() / "negative" / "folders" / "nvfp4-with-int8-activations").string();
  EXPECT_TRUE(contains(run(u).text, "UNSUPPORTED"));
  bool refused = false;
  const Json unsupported = run_json(u);
  for (const Json& m : unsupported.find("modules")->items())
    if (!m.find("supported")->as_bool()) refused = !m.find("reason")->as_string().empty();
  EXPECT_TRUE(refused);
}

TEST(Inspect, GroupsOfOneLayerAreNamed) {
  InspectOptions o;
  o.folder = (test_data_dir() / "golden" / "qwen3moe-mixed-layers").string();
  std::map<std::string, std::string> schemes;
  const Json j = run_json(o);
  for (const Json& m : j.find("modules")->items()) {
    EXPECT_TRUE(schemes.emplace(m.find("name")->as_string(), m.find("scheme")->as_string()).second)
        << m.dump();
  }
  EXPECT_EQ(schemes["model.layers.0.mlp.experts.*.up_proj"], "w4a16");
  EXPECT_EQ(schemes["model.layers.1.mlp.experts.*.up_proj"], "fp8");
  EXPECT_EQ(schemes["model.layers.*.mlp.gate"], "bf16");
}

// The parameters of the model that transformers builds: what its folder stores, less buffers; and a
// quantized folder has as many as the dense one it was made from.
TEST(Inspect, ParametersAreTransformersCount) {
  const auto counted = [](const fs::path& folder) {
    InspectOptions o;
    o.folder = folder.string();
    return number(run_json(o), "params_total");
  };
  std::map<std::string, int64_t> dense;
  for (const auto& entry : fs::directory_iterator(test_data_dir() / "golden")) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with("-dense")) continue;
    const TensorStore store = TensorStore::open_file((entry.path() / "model.safetensors").string());
    int64_t stored = 0;
    for (const TensorInfo& t : store.tensors()) {
      // The correction bias is a parameter in some models of transformers, a buffer in most.
      const bool correction = t.name.ends_with("e_score_correction_bias") ||
                              t.name.ends_with("expert_bias") || t.name.ends_with("router_bias") ||
                              (name.starts_with("inkling") && t.name.ends_with("mlp.gate.bias")) ||
                              (name.starts_with("deepseekv4") && t.name.ends_with("ffn.gate.bias"));
      const bool counts =
          name.starts_with("ernie") || name.starts_with("afmoe") || name.starts_with("laguna");
      const bool buffer = t.name.ends_with("layer_scalar") || t.name.ends_with("slope_rate") ||
                          t.name.ends_with("_decay") || t.name.ends_with("lerope.alpha") ||
                          t.name.ends_with("tid2eid") ||
                          t.name.find(".ple_embedding.layer_multipliers") != std::string::npos ||
                          t.name.find(".ple_embedding.ngram_heads_") != std::string::npos;
      if ((correction && !counts) || buffer) continue;
      uint64_t elements = 1;
      for (const uint64_t d : t.shape) elements *= d;
      stored += static_cast<int64_t>(elements);
    }
    EXPECT_EQ(counted(entry.path()), stored) << name;
    dense[name.substr(0, name.size() - 5)] = stored;
  }
  EXPECT_GT(dense.size(), 10u);
  for (const char* name : {"deepseekv3-w4a8-g32", "glm4moe-nvfp4", "gptoss-mxfp4-native",
                           "minimaxm2-mixed-fp8-int4", "qwen3moe-mixed-layers", "llama-w8a8"}) {
    const std::string family = std::string(name).substr(0, std::string(name).find('-') + 1);
    EXPECT_EQ(counted(test_data_dir() / "golden" / name), dense[family]) << name;
  }
}

// Tensors of heads that predict further tokens: by name and bytes, and the model loads beside them.
TEST(Inspect, HeadsThatPredictAreAccountedFor) {
  const fs::path folder = test_data_dir() / "golden" / "deepseekv3-dense";
  const TensorStore store = TensorStore::open_file((folder / "model.safetensors").string());
  std::deque<std::vector<uint8_t>> memory;
  std::vector<TensorData> tensors;
  for (const TensorInfo& t : store.tensors()) {
    store.read(t, 0, memory.emplace_back(t.bytes));
    tensors.push_back({t.name, t.dtype, t.shape, memory.back()});
  }
  const size_t K = 128, N = 64;
  tensors.push_back(
      {"model.layers.2.eh_proj.weight", DType::kBf16, {N, K}, memory.emplace_back(2 * N * K)});
  tensors.push_back({"model.layers.2.enorm.weight", DType::kBf16, {N}, memory.emplace_back(2 * N)});
  const TempDir dir;
  write_safetensors((dir / "model.safetensors").string(), tensors);
  fs::copy_file(folder / "config.json", dir.path() / "config.json");
  InspectOptions o;
  o.folder = dir.path().string();
  const Json j = run_json(o);
  EXPECT_EQ(number(*j.find("prediction_heads"), "tensors"), 2);
  EXPECT_EQ(number(*j.find("prediction_heads"), "bytes"), static_cast<int64_t>(2 * N * (K + 1)));
  std::set<std::string> names;
  for (const Json& u : j.find("unused")->items()) names.insert(u.find("name")->as_string());
  EXPECT_TRUE(names.contains("model.layers.2.eh_proj.weight"));
  EXPECT_TRUE(names.contains("model.layers.2.enorm.weight"));
  EXPECT_EQ(number(*run_json({}).find("prediction_heads"), "tensors"), 0);
  ThreadPool pool(1);
  ModelOptions mo;
  mo.pool = &pool;
  EXPECT_GT(DecoderModel::load(Checkpoint::open(o.folder), mo)->packed_bytes(), 0u);
}

// What inspect promises from headers is what a loaded model has.
TEST(Inspect, PackedWeightsAndCacheAreWhatALoadedModelHolds) {
  ThreadPool pool(1);
  for (const char* name : {"", "deepseekv3-w4a8-g32", "gptoss-mxfp4-native", "qwen2moe-w4a16-g32",
                           "qwen3moe-w8a16-embeddings", "llama-w8a8", "granitemoe-dense"}) {
    SCOPED_TRACE(name);
    InspectOptions o;
    o.folder = (*name == '\0' ? bundled_model_dir() : test_data_dir() / "golden" / name).string();
    const Json j = run_json(o);
    ASSERT_TRUE(j.find("runs")->as_bool()) << j.find("runs_reason")->as_string();
    const Checkpoint checkpoint = Checkpoint::open(o.folder);
    ModelOptions mo;
    mo.pool = &pool;
    mo.type = activation_type("auto", checkpoint.config().dtype);
    const auto model = DecoderModel::load(checkpoint, mo);
    const auto held = static_cast<double>(model->packed_bytes());
    EXPECT_NEAR(static_cast<double>(number(j, "packed_bytes")), held, 0.02 * held);
    const int64_t per_token = number(j, "kv_bytes_per_token");
    EXPECT_EQ(per_token, static_cast<int64_t>(model->kv_plan().bytes_per_token()));
    SequenceState state = model->new_sequence();
    const size_t before = state.kv_bytes();
    const std::vector<int32_t> tokens(256, 1);
    std::vector<float> logits;
    const StepItem item{&state, tokens, false};
    model->forward({&item, 1}, logits);
    EXPECT_EQ(static_cast<int64_t>(state.kv_bytes() - before), 256 * per_token) << "as allocated";
  }
}

TEST(Inspect, SaysWhetherRunWorks) {
  const Json bundled = run_json({});
  EXPECT_TRUE(bundled.find("runs")->as_bool());
  EXPECT_TRUE(contains(bundled.find("tokenizer")->as_string(), "tokenizer.json, 4096 tokens"));
  EXPECT_TRUE(bundled.find("chat_template")->is_string());
  EXPECT_GT(number(bundled, "context"), 0);
  InspectOptions o;
  o.context = 300;
  const Json sized = run_json(o);
  const Json& need = sized.find("run_memory")->items().at(0);
  EXPECT_EQ(number(need, "bytes"),
            number(sized, "packed_bytes") + 384 * number(sized, "kv_bytes_per_token"));
  EXPECT_TRUE(contains(run(o).text, "300\n"));  // "... for -c 300", wherever the line was wrapped
  InspectOptions ids;
  ids.folder = (test_data_dir() / "golden" / "llama-dense").string();
  EXPECT_TRUE(contains(run(ids).text, "yes; context"));
  EXPECT_TRUE(contains(run(ids).text, "no tokenizer.json: token ids only"));
  InspectOptions no;
  no.folder = (test_data_dir() / "negative" / "folders" / "nvfp4-with-int8-activations").string();
  EXPECT_FALSE(run_json(no).find("runs")->as_bool());
  // The reason names a file; a long path goes to a line of its own.
  EXPECT_TRUE(contains(run(no).text, "run       no:"));
}

// A copy of a golden folder, whose configuration says `to` wherever it said `from`.
Json inspected_with(const std::string& name, std::string_view from, std::string_view to) {
  const TempDir dir;
  fs::copy(test_data_dir() / "golden" / name, dir.path());
  std::string text = read_file(dir / "config.json");
  EXPECT_TRUE(contains(text, std::string(from)));
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  write_file(dir / "config.json", text);
  InspectOptions o;
  o.folder = dir.path().string();
  o.tensors = true;
  return run_json(o);
}

TEST(Inspect, LayerTypesOfNewerExportersRun) {
  for (const auto& [name, word] : {std::pair{"glm5next-dense", "deepseek_sparse_attention"},
                                   std::pair{"qwen4exp-dense", "qwen_sparse_attention"}}) {
    const Json old = inspected_with(name, "indexed_attention", "indexed_attention");
    const Json now = inspected_with(name, "indexed_attention", word);
    EXPECT_TRUE(now.find("runs")->as_bool()) << now.find("runs_reason")->as_string();
    EXPECT_EQ(number(now, "kv_bytes_per_token"), number(old, "kv_bytes_per_token")) << name;
  }
}

const std::string kStaticCache = "qwen3moe-fp8-static-kv";

TEST(Inspect, ScalesOfTheCacheThatIsDeclaredAreUsed) {
  const Json j = inspected_with(kStaticCache, "kv_cache_scheme", "kv_cache_scheme");
  EXPECT_TRUE(j.find("unused")->items().empty()) << j.find("unused")->dump();
  const Json none = inspected_with(kStaticCache, "\"kv_cache_scheme\"", "\"version_of\"");
  ASSERT_FALSE(none.find("unused")->items().empty());
  EXPECT_EQ(none.find("unused")->items()[0].find("reason")->as_string(),
            "scale of a quantized KV cache; config.json declares no cache that reads it");
  EXPECT_EQ(number(j, "params_total"), number(none, "params_total"));
}

TEST(Inspect, ScalesOfOlderExportersSayNothingOfTheCache) {
  TinyModel m(
      R"("architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": 48)");
  m.skeleton().dense_mlp("model.layers.0.mlp");
  m.add("model.layers.0.self_attn.k_proj.output_scale", {1});
  const TempDir dir;
  InspectOptions o;
  o.folder = m.write(dir);
  const Json j = run_json(o);
  ASSERT_EQ(j.find("unused")->items().size(), 1u);
  EXPECT_EQ(j.find("unused")->items()[0].find("reason")->as_string(),
            "scale of an older exporter for a quantized KV cache; no cache reads it");
}

TEST(Inspect, ScalesPerHeadAreRefusedByStrategyAndModule) {
  TinyModel m(
      R"("architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": 48, "quantization_config":
         {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme":
          {"num_bits": 8, "type": "float", "strategy": "attn_head"}})");
  m.skeleton().dense_mlp("model.layers.0.mlp");
  for (const char* side : {"k_scale", "v_scale"})
    m.add(std::string("model.layers.0.self_attn.") + side, {2, 1, 1});
  const TempDir dir;
  InspectOptions o;
  o.folder = m.write(dir);
  const Json j = run_json(o);
  EXPECT_FALSE(j.find("runs")->as_bool());
  const std::string reason = j.find("runs_reason")->as_string();
  for (const char* part :
       {"kv_cache_scheme.strategy is attn_head", "model.layers.0.self_attn.k_scale", "--kv-dtype"})
    EXPECT_TRUE(contains(reason, part)) << reason;
}

// Folding numbers must not turn entries of the config into patterns that other lines contradict.
TEST(Inspect, RulesOfFoldedModulesAreSaidInWords) {
  const Json j = run_json({});
  for (const Json& m : j.find("modules")->items()) {
    EXPECT_FALSE(contains(m.find("rule")->as_string(), ".*.")) << m.dump();
    if (m.find("name")->as_string() == "model.layers.*.mlp.gate") {
      EXPECT_EQ(m.find("rule")->as_string(), "ignore each by its own name");
    }
  }
}

TEST(Inspect, TextFitsOneScreenWithoutColour) {
  const std::string text = run({}).text;
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  InspectOptions o;
  o.colour = true;
  EXPECT_NE(run(o).text.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace moebius::test::inspect_test
