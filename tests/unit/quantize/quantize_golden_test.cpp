// SPDX-License-Identifier: Apache-2.0
// Folders made by quantize/ against folders that llmcompressor made from the same source: names,
// types, shapes and every byte. build/data/golden holds the pairs of many families; golden/quantize.json
// the hashes of further schemes (tests/python/compare_quantize.py makes it, and compares the folders
// of the bundled model and more).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/numeric.h"
#include "base/sha256.h"
#include "checkpoint/tensor_store.h"
#include "quantize/quantize.h"
#include "runtime/thread_pool.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::quantize_golden_test {
namespace {

namespace fs = std::filesystem;

std::string golden(const std::string& name) {
  return (test::test_data_dir() / "golden" / name).string();
}

std::string make(QuantizeOptions options, const test::TempDir& dir, size_t threads = 2) {
  static ThreadPool pool(2);
  options.target = (dir / "out").string();
  QuantizeJob job(std::move(options), threads);
  job.run(pool, {});
  return (dir / "out").string();
}

struct Stored {
  DType dtype;
  std::vector<uint64_t> shape;
  std::vector<uint8_t> bytes;
};
std::map<std::string, Stored> tensors_of(const std::string& folder) {
  std::vector<std::string> warnings;
  const TensorStore store = TensorStore::open_folder(folder, warnings);
  std::map<std::string, Stored> out;
  for (const TensorInfo& t : store.tensors()) {
    Stored s{t.dtype, t.shape, std::vector<uint8_t>(t.bytes)};
    store.read(t, 0, s.bytes);
    out.emplace(t.name, std::move(s));
  }
  return out;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at; (at = text.find(from)) != std::string::npos;) text.replace(at, from.size(), to);
  return text;
}

// llmcompressor saves modules of some families under the names of transformers' classes; these are
// the names of the source.
std::string usual_name(std::string name) {
  if (name.find(".experts.") != std::string::npos)
    for (const auto& [from, to] : {std::pair(".experts.mlp.", ".experts."),
                                   {".w1.", ".gate_proj."},
                                   {".v1.", ".up_proj."},
                                   {".linear_gate.", ".gate_proj."},
                                   {".w3.", ".up_proj."},
                                   {".w2.", ".down_proj."}})
      name = replaced(name, from, to);
  return name;
}

struct Pair {
  std::string source, made;
};
std::vector<Pair> pairs() {
  std::vector<Pair> out;
  for (const fs::directory_entry& e : fs::directory_iterator(test::test_data_dir() / "golden")) {
    const std::string name = e.path().filename().string();
    const size_t dash = name.find('-');
    if (dash == std::string::npos || name.ends_with("-dense")) continue;
    const std::string source = name.substr(0, dash) + "-dense";
    // The folders of qwen3moe come from several models; these come from the one that is stored.
    const bool same_model = name.substr(0, dash) != "qwen3moe" || name == "qwen3moe-mixed-layers" ||
                            name == "qwen3moe-w4a16-first-only" ||
                            name == "qwen3moe-w4a8-g32-sharded";
    constexpr std::string_view kSchemes[] = {"-w4a16-g16", "-w4a16-g32", "-fp8-dynamic", "-w8a8",
                                             "-w4a8-g32"};
    const std::string tail = name.substr(dash);
    const bool rounded =
        std::find(std::begin(kSchemes), std::end(kSchemes), tail) != std::end(kSchemes);
    // Made from another model, with names put together by hand, or with a vision part left.
    const bool other =
        name.starts_with("ernie45") || name.starts_with("llama4") || name.starts_with("minimaxm3");
    if (fs::exists(golden(source)) && same_model && !other &&
        (rounded || name.starts_with("qwen3moe")))
      out.push_back({source, name});
  }
  std::sort(out.begin(), out.end(), [](const Pair& a, const Pair& b) { return a.made < b.made; });
  return out;
}

class QuantizePairs : public ::testing::TestWithParam<Pair> {};

TEST_P(QuantizePairs, AreTheBytesOfLlmcompressor) {
  const auto& [source, made] = GetParam();
  const test::TempDir dir;
  const Json theirs =
      *parse_json(test::read_file(golden(made) + "/config.json"), made).find("quantization_config");
  QuantizeOptions options;
  options.source = golden(source);
  options.groups_file = (dir / "groups.json").string();
  // What the other library was told to leave, besides what both leave.
  for (const Json& name : theirs.find("ignore")->items())
    options.ignore.push_back(name.as_string());
  test::write_file(options.groups_file, theirs.find("config_groups")->dump());
  const std::string out = make(options, dir);
  const auto expected = tensors_of(golden(made));
  size_t compared = 0;
  std::map<std::string, Stored> found;
  for (auto& [name, tensor] : tensors_of(out)) found.emplace(usual_name(name), tensor);
  for (const auto& [name, tensor] : expected) {
    // What is not quantized the library saved in the model's type, and some of it anew. Its lists left
    // out two kinds of modules that ours names: indexers and one family's routers.
    const std::string module = name.substr(0, name.rfind('.'));
    if (!expected.contains(module + ".weight_scale") || module.ends_with(".gate.wg") ||
        module.find(".indexer.") != std::string::npos)
      continue;
    const auto it = found.find(usual_name(name));
    if (it == found.end()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    EXPECT_EQ(it->second.dtype, tensor.dtype) << name;
    EXPECT_EQ(it->second.shape, tensor.shape) << name;
    EXPECT_TRUE(it->second.bytes == tensor.bytes) << name << " differs";
    ++compared;
  }
  EXPECT_GT(compared, 0u);
  // And nothing more is quantized, but for fused experts that were not taken apart there.
  const bool composed = made.starts_with("step3p7-") || made.starts_with("dbrx-") ||
                        made.starts_with("inkling-"),  // make_checkpoints_compose.py
      fused = composed || made.starts_with("longcatflash-");
  std::set<std::string> theirs_too;
  for (const auto& [name, tensor] : expected) theirs_too.insert(usual_name(name));
  for (const auto& [name, tensor] : found)
    if (name.ends_with(".weight_scale") &&
        !(fused && name.find(".experts.") != std::string::npos)) {
      EXPECT_TRUE(theirs_too.contains(name)) << name << " is not quantized there";
    }
  const Json ours =
      *parse_json(test::read_file(out + "/config.json"), out).find("quantization_config");
  EXPECT_EQ(ours.find("format")->as_string(), theirs.find("format")->as_string());
  // Spelt out as oneshot does; groups of another name come from functions that write fewer fields.
  if (theirs.find("config_groups")->find("group_0") != nullptr && !composed) {
    EXPECT_EQ(ours.find("config_groups")->dump(), theirs.find("config_groups")->dump());
  }
  EXPECT_NO_THROW(Checkpoint::open(out).require_supported());
}

INSTANTIATE_TEST_SUITE_P(All, QuantizePairs, ::testing::ValuesIn(pairs()),
                         [](const auto& p) { return replaced(p.param.made, "-", "_"); });

TEST(QuantizeGolden, HashesOfFurtherSchemes) {
  const Json all = parse_json(test::read_file(golden("quantize.json")), "quantize.json");
  ASSERT_GE(all.find("cases")->items().size(), 20u);
  for (const Json& c : all.find("cases")->items()) {
    const std::string scheme = c.find("scheme")->as_string(),
                      source = c.find("source")->as_string();
    SCOPED_TRACE(source + " " + scheme);
    const test::TempDir dir;
    QuantizeOptions options;
    options.source = golden(source);
    options.scheme = scheme;
    options.group = c.find("group") != nullptr ? c.find("group")->as_int() : std::nullopt;
    if (const Json* sym = c.find("symmetric")) options.symmetric = sym->as_bool();
    if (const Json* format = c.find("format")) options.format = format->as_string();
    const auto found = tensors_of(make(options, dir));
    EXPECT_EQ(found.size(), c.find("tensors")->as_uint());
    Sha256 whole;
    const auto add = [](Sha256& sha, const std::string& text) {
      sha.add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
    };
    for (const auto& [name, tensor] : found) {
      Sha256 one;
      add(one, describe(TensorInfo{name, tensor.dtype, tensor.shape, 0, 0, 0}));
      one.add(tensor.bytes);
      add(whole, name + " " + one.hex().substr(0, 16) + "\n");
    }
    // compare_quantize.py names the tensors that differ.
    EXPECT_EQ(whole.hex(), c.find("sha256")->as_string());
  }
}

float number_of(const Stored& s) {
  if (s.dtype == DType::kF32) {
    float v = 0;
    std::memcpy(&v, s.bytes.data(), 4);
    return v;
  }
  uint16_t v = 0;
  std::memcpy(&v, s.bytes.data(), 2);
  return bf16_to_f32(v);
}

QuantizeOptions calibrated(const std::string& source, const std::string& scheme) {
  QuantizeOptions options;
  options.source = golden(source);
  options.scheme = scheme;
  options.calibration.files = {golden("calibration.jsonl")};
  options.calibration.context = 64;
  options.calibration.all_experts = true;
  return options;
}

// Static input scales against llmcompressor's from the same rows, with the causal mask that its
// calibration loses as shipped (compare_quantize.py --calibrated --write makes both files).
TEST(QuantizeGolden, InputScalesAreThoseOfLlmcompressor) {
  const Json all = parse_json(test::read_file(golden("input_scales.json")), "input_scales.json");
  ASSERT_EQ(all.find("cases")->items().size(), 6u);
  for (const Json& c : all.find("cases")->items()) {
    const std::string source = c.find("source")->as_string(),
                      scheme = c.find("scheme")->as_string();
    SCOPED_TRACE(source + " " + scheme);
    const test::TempDir dir;
    const auto found = tensors_of(make(calibrated(source, scheme), dir));
    size_t scales = 0, close = 0;
    for (const auto& [name, expected] : c.find("scales")->members()) {
      ASSERT_TRUE(found.contains(name)) << name;
      const double ratio = static_cast<double>(number_of(found.at(name))) / expected.as_double();
      EXPECT_NEAR(ratio, 1, 0.016) << name;
      close += std::abs(ratio - 1) <= 0.01 ? 1 : 0;
      ++scales;
    }
    EXPECT_GT(scales, 20u);
    EXPECT_GE(close + 2, scales);  // each is one number of bf16 arithmetic, in another order
  }
}

// Folders whose scales llmcompressor took without that mask: all else is equal to the byte.
TEST(QuantizeGolden, CalibratedFoldersHaveTheSameWeights) {
  for (const auto& [source, made, scheme] :
       {std::tuple("olmoe-dense", "olmoe-fp8-static", "FP8"),
        std::tuple("glm4moe-dense", "glm4moe-nvfp4", "NVFP4")}) {
    SCOPED_TRACE(made);
    const test::TempDir dir;
    const auto found = tensors_of(make(calibrated(source, scheme), dir)),
               expected = tensors_of(golden(made));
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      ASSERT_TRUE(found.contains(name)) << name;
      const Stored& ours = found.at(name);
      EXPECT_EQ(ours.dtype, tensor.dtype) << name;
      EXPECT_EQ(ours.shape, tensor.shape) << name;
      EXPECT_TRUE(ours.bytes == tensor.bytes || name.find(".input_") != std::string::npos)
          << name << " differs";
    }
    const Json section = *parse_json(test::read_file((dir / "out/config.json").string()), made)
                              .find("quantization_config");
    const Json theirs = *parse_json(test::read_file(golden(made) + "/config.json"), made)
                             .find("quantization_config");
    EXPECT_EQ(section.find("config_groups")->dump(), theirs.find("config_groups")->dump());
    EXPECT_NO_THROW(Checkpoint::open((dir / "out").string()).require_supported());
  }
}

TEST(QuantizeJob, ASourceThatChangesDuringTheRunIsNotFinished) {
  const test::TempDir dir;
  fs::copy(golden("qwen3moe-dense"), dir / "src");
  QuantizeOptions options;
  options.source = (dir / "src").string(), options.target = (dir / "out").string();
  options.scheme = "W8A8";
  ThreadPool pool(1);
  QuantizeJob job(options, 1);
  bool changed = false;
  try {
    job.run(pool, [&](const QuantizeProgress&) {
      if (!std::exchange(changed, true))
        test::write_file(dir / "src/config.json", test::read_file(dir / "src/config.json") + " ");
    });
    FAIL() << "it was finished";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("src: the source was changed during the run: "
                                         "source.files[0].bytes was "),
              std::string::npos)
        << e.what();
  }
  EXPECT_FALSE(fs::exists(dir / "out"));
  EXPECT_FALSE(fs::exists(dir / "out.partial/config.json"));
}

}  // namespace
}  // namespace moebius::quantize_golden_test
