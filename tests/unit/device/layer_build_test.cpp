// SPDX-License-Identifier: Apache-2.0
// Layers from tensors in memory: of every golden folder the packed bytes and the outputs of the
// loader, whole and by ranks; what is wrong with tensors is said in words.
#include "device/cpu/layer_build.h"

#include <gtest/gtest.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <cmath>
#include <deque>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/formats/needs.h"
#include "checkpoint/methods/method.h"
#include "moebius/moebius.h"
#include "unit/test_util.h"

namespace moebius::layer_build_test {
namespace {

namespace fs = std::filesystem;

// Fresh memory of one and the same content while it lives: bytes that no packer writes (between
// matrices, behind the last) are then equal in equal layers.
class EqualFreshMemory {
 public:
#if defined(__GLIBC__)
  EqualFreshMemory() { mallopt(M_PERTURB, 0x5a); }
  ~EqualFreshMemory() { mallopt(M_PERTURB, 0); }
#endif
  EqualFreshMemory(const EqualFreshMemory&) = delete;
  EqualFreshMemory& operator=(const EqualFreshMemory&) = delete;
#if !defined(__GLIBC__)
  EqualFreshMemory() = default;
#endif
};

std::vector<fs::path> golden_folders() {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(test::test_data_dir() / "golden"))
    if (fs::exists(entry.path() / "config.json")) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

const TensorRef& codes_of(const Module& m) {
  const ModuleTensors& t = m.plan.tensors;
  return t[Role::kWeightPacked] ? t[Role::kWeightPacked] : t[Role::kWeight];
}
bool is_apart(const Module& m) { return codes_of(m).row_count == 0; }

// Tensors as a caller would hold them: one matrix each, outputs first.
struct Given {
  std::deque<std::vector<uint8_t>> memory;
  std::vector<TensorData> tensors;

  void add(const TensorStore& store, const TensorRef& ref, const std::string& name,
           bool apart = false) {
    std::vector<uint64_t> shape = ref.info->shape;
    uint64_t bytes = ref.info->bytes, at = 0, elements = 1;
    for (const uint64_t d : shape) elements *= d;
    if (ref.index >= 0 && elements > 1 && name.find("weight_shape") == std::string::npos) {
      bytes /= shape[0];
      at = bytes * static_cast<uint64_t>(ref.index);
      shape.erase(shape.begin());
      if (shape.empty()) shape = {1};
    }
    if (apart && ref.row_count != 0) {  // half of a table, whose weights are not stored so
      bytes /= 2;
      at += ref.row_begin != 0 ? bytes : 0;
      shape[0] /= 2;
    }
    std::vector<uint8_t>& data = memory.emplace_back(bytes);
    store.read(*ref.info, at, data);
    if (ref.transposed) turn(data, shape, bits_of(ref.info->dtype) / 8);
    tensors.push_back({name, ref.info->dtype, shape, data});
  }

  static void turn(std::vector<uint8_t>& data, std::vector<uint64_t>& shape, uint64_t element) {
    const std::vector<uint8_t> from = data;
    const uint64_t rows = shape[0], cols = shape[1];
    for (uint64_t r = 0; r < rows; ++r)
      for (uint64_t c = 0; c < cols; ++c)
        std::copy_n(&from[(r * cols + c) * element], element, &data[(c * rows + r) * element]);
    shape = {cols, rows};
  }

  void add(const TensorStore& store, const Module& m, const std::string& prefix) {
    for (size_t i = 0; i < static_cast<size_t>(Role::kCount); ++i)
      if (const TensorRef& ref = m.plan.tensors.by_role[i])
        add(store, ref, prefix + std::string(suffix_of(static_cast<Role>(i))), is_apart(m));
  }
};

StoredScheme stored(const Checkpoint& c, const Module* m) {
  return m == nullptr ? StoredScheme{} : StoredScheme{m->decision.scheme, c.quant().version()};
}

std::vector<float> some_rows(size_t T, size_t K) {
  std::vector<float> x(T * K);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = std::sin(static_cast<float>(i * i % 9973)) * (1.0f + static_cast<float>(i % 7));
  return x;
}

LayerOptions options_for(ThreadPool& pool, const Rank& rank = {}) {
  LayerOptions o;
  o.pool = &pool;
  o.x_type = XType::kF32;
  o.rank = rank;
  o.rank.own_maxima = true;
  return o;
}

std::unique_ptr<MoeLayer> built_experts(const Checkpoint& c, const MoeBlock& block,
                                        const LayerOptions& options) {
  ExpertsBuilder::Description d;
  d.name = block.name;
  d.spec = block.spec;
  d.spec.shared = SharedKind::kNone;
  d.router = {block.correction_bias, block.per_expert_scale, {}};
  d.schemes = {stored(c, block.experts[0][0]), stored(c, block.experts[0][1]),
               stored(c, block.experts[0][2])};
  const TensorRef& up = codes_of(*block.experts[0][1]);
  d.gate_up_step = up.row_step;
  const std::vector<int32_t> map = expert_map(block.experts.size(), options.rank.ep,
                                              options.rank.ep_rank, options.rank.placement);
  ExpertsBuilder builder(std::move(d), options);
  for (size_t e = block.experts.size(); e-- > 0;) {  // any order
    if (map[e] < 0) continue;
    const auto& [gate, up_module, down] = block.experts[e];
    Given given;
    if (up.row_count != 0) {
      given.add(c.store(), *gate, "gate_up.");
    } else {
      if (gate != nullptr) given.add(c.store(), *gate, "gate.");
      given.add(c.store(), *up_module, "up.");
    }
    given.add(c.store(), *down, "down.");
    builder.set_expert(e, given.tensors);
  }
  return builder.finish();
}

std::vector<float> run_experts(const MoeLayer& layer, const std::vector<float>& x, size_t T,
                               ThreadPool& pool) {
  const size_t k = std::min<size_t>(2, layer.spec().experts), H = layer.spec().hidden;
  std::vector<int32_t> ids(T * k);
  std::vector<float> weights(T * k), y(T * H);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 5 + i / 3) % layer.spec().experts),
    weights[i] = 0.25f + 0.1f * static_cast<float>(i % 5);
  layer.forward_ids(f32_rows(x.data(), T, H), ids, weights, f32_rows(y.data(), T, H), pool);
  return y;
}

void expect_equal(const MoeLayer& got, const MoeLayer& want, ThreadPool& pool) {
  ASSERT_EQ(got.packed_bytes(), want.packed_bytes());
  EXPECT_TRUE(std::equal(got.packed().begin(), got.packed().end(), want.packed().begin()));
  constexpr size_t T = 4;
  const std::vector<float> x = some_rows(T, got.spec().hidden);
  EXPECT_EQ(run_experts(got, x, T, pool), run_experts(want, x, T, pool));
}

// What a call says, "" when it works.
template <class F>
std::string words_of(F&& call) {
  try {
    call();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

bool can_run(const MoeBlock& block) {
  for (const auto& expert : block.experts)
    for (const Module* m : expert)
      if (m != nullptr && !m->supported) return false;
  // Memory has experts of one scheme and one way of storage; a file may have other shared ones (Inkling).
  for (size_t p = 0; p < 3; ++p) {
    const Module *first = block.experts.front()[p], *last = block.experts.back()[p];
    if (first == nullptr || last == nullptr) continue;
    const TensorRef &a = first->plan.tensors[Role::kWeight], &b = last->plan.tensors[Role::kWeight];
    if (first->plan.scheme != last->plan.scheme || a.row_count != b.row_count) return false;
  }
  return block.experts_reason.empty();
}

TEST(LayerBuild, ExpertsOfEveryFolderHaveTheBytesOfTheLoader) {
  const EqualFreshMemory fresh;
  ThreadPool pool(2);
  size_t blocks = 0;
  for (const fs::path& folder : golden_folders()) {
    const Checkpoint c = Checkpoint::open(folder.string());
    for (const MoeBlock& block : c.moe_blocks()) {
      if (!can_run(block)) continue;
      SCOPED_TRACE(folder.filename().string() + " " + block.name);
      const LayerOptions o = options_for(pool);
      const auto want = load_moe(c, block, o, MoePart::kExperts);
      std::unique_ptr<MoeLayer> got;
      ASSERT_EQ(words_of([&] { got = built_experts(c, block, o); }), "");
      expect_equal(*got, *want.experts, pool);
      ++blocks;
    }
  }
  EXPECT_GT(blocks, 100u);
}

TEST(LayerBuild, RanksHaveTheBytesOfTheLoader) {
  const EqualFreshMemory fresh;
  ThreadPool pool(2);
  for (const char* name : {"qwen3moe-w4a8-g32-pack", "qwen3moe-w4a16-actorder-group",
                           "qwen3moe-fp8-block", "gptoss-w4a16-g32", "qwen3moe-w4a16-asym-g32",
                           "qwen3moe-gptq-w4-g32", "mixtral-awq-gemv-g32"}) {
    const Checkpoint c = Checkpoint::open((test::test_data_dir() / "golden" / name).string());
    const MoeBlock& block = c.moe_blocks().at(0);
    for (const Rank& rank :
         {Rank{2, 1}, Rank{1, 0, 2, 1}, Rank{2, 0, 2, 0, Placement::kRoundRobin}}) {
      SCOPED_TRACE(fmt::format("{} tp {} of {}, ep {} of {}", name, rank.tp_rank, rank.tp,
                               rank.ep_rank, rank.ep));
      const LayerOptions o = options_for(pool, rank);
      std::unique_ptr<MoeLayer> want, got;
      const std::string words =
          words_of([&] { want = load_moe(c, block, o, MoePart::kExperts).experts; });
      if (!words.empty()) {
        EXPECT_NE(words_of([&] { got = built_experts(c, block, o); }), "");
        continue;
      }
      ASSERT_EQ(words_of([&] { got = built_experts(c, block, o); }), "");
      expect_equal(*got, *want, pool);
    }
  }
}

TEST(LayerBuild, LinearsOfEveryFolderHaveTheBytesOfTheLoader) {
  const EqualFreshMemory fresh;
  ThreadPool pool(2);
  constexpr size_t T = 3;
  size_t linears = 0;
  for (const fs::path& folder : golden_folders()) {
    const Checkpoint c = Checkpoint::open(folder.string());
    for (const Module& m : c.modules()) {
      if (m.kind != ModuleKind::kLinear && m.kind != ModuleKind::kLmHead) continue;
      const TensorRef& codes = codes_of(m);
      if (!m.supported || m.layer > 0 || codes.row_count != 0 || codes.index >= 0) continue;
      for (const uint64_t tp : {1u, 2u, 3u}) {
        const Cut cut = tp == 1 ? Cut::kWhole : cut_of(m, Cut::kInputs);
        if (tp > 1 && (cut == Cut::kWhole || (tp == 3 && linears % 4 != 0))) continue;
        SCOPED_TRACE(fmt::format("{} {} tp {}", folder.filename().string(), m.name, tp));
        const LayerOptions o = options_for(pool, {tp, tp - 1});
        std::unique_ptr<LinearLayer> want, got;
        if (!words_of([&] { want = load_linear(c, {&m}, o); }).empty()) continue;
        Given given;
        given.add(c.store(), m, "");
        ASSERT_EQ(words_of([&] {
                    got = build_linear(
                        {{m.name, stored(c, &m), m.plan.N, m.plan.K, cut, 0, 0, given.tensors}}, o);
                  }),
                  "");
        ASSERT_EQ(got->packed_bytes(), want->packed_bytes());
        EXPECT_TRUE(std::equal(got->packed().begin(), got->packed().end(), want->packed().begin()));
        const std::vector<float> x = some_rows(T, want->in_features());
        std::vector<float> a(T * want->out_features()), b = a;
        for (auto& [layer, y] : {std::pair{&got, &a}, std::pair{&want, &b}})
          (*layer)->forward(f32_rows(x.data(), T, (*layer)->in_features()),
                            f32_rows(y->data(), T, (*layer)->out_features()), pool);
        EXPECT_EQ(a, b);
        ++linears;
      }
    }
  }
  EXPECT_GT(linears, 300u);
}

// The list of tensors that loaders collect by is what the readers take.
TEST(LayerBuild, NeedsAreWhatFoldersStore) {
  for (const fs::path& folder : golden_folders()) {
    const Checkpoint c = Checkpoint::open(folder.string());
    for (const Module& m : c.modules()) {
      if (!has_matrix(m) || !m.supported) continue;
      std::vector<bool> known(static_cast<size_t>(Role::kCount), false);
      for (const RoleNeed& need : roles_of(m.decision.scheme)) {
        known[static_cast<size_t>(need.role)] = true;
        EXPECT_TRUE(!need.required || m.plan.tensors[need.role])
            << folder << " " << m.name << " " << suffix_of(need.role);
      }
      for (size_t i = 0; i < known.size(); ++i)
        EXPECT_TRUE(known[i] || !m.plan.tensors.by_role[i])
            << folder << " " << m.name << " " << suffix_of(static_cast<Role>(i));
    }
  }
}

TEST(LayerBuild, ASchemeIsTheGroupOfItsConfig) {
  size_t groups = 0;
  for (const fs::path& folder : golden_folders()) {
    const Checkpoint c = Checkpoint::open(folder.string());
    const Json config =
        parse_json(read_text_file((folder / "config.json").string(), 1 << 20), "config.json");
    const Json* section = config.find("quantization_config");
    const Json* list = section == nullptr ? nullptr : section->find("config_groups");
    if (list == nullptr || list->members().size() != c.quant().groups().size()) continue;
    for (size_t i = 0; i < list->members().size(); ++i) {
      Json group = list->members()[i].second;
      for (const char* name : {"format", "version"})
        if (const Json* value = section->find(name);
            value != nullptr && group.find(name) == nullptr &&
            (!value->is_string() || value->as_string() != "mixed-precision"))
          group.set(name, *value);
      const StoredScheme s = parse_stored_scheme(group.dump());
      EXPECT_EQ(s.scheme, c.quant().groups()[i].scheme) << folder;
      EXPECT_EQ(s.version, c.quant().version()) << folder;
      ++groups;
    }
  }
  EXPECT_GT(groups, 50u);
  EXPECT_TRUE(parse_stored_scheme("{}").scheme.is_dense());
  for (const char* bad : {"", "[]", "{\"weights\": 3}", "{\"weights\": {\"num_bits\": 99}}", "{"})
    EXPECT_THROW(parse_stored_scheme(bad), Error) << bad;
  // What is not finite is no number, and not the default either.
  for (const char* field : {"num_bits", "group_size"})
    for (const char* value : {"NaN", "Infinity", "-Infinity"})
      EXPECT_EQ(words_of([&] {
                  parse_stored_scheme(fmt::format(R"({{"weights": {{"{}": {}}}}})", field, value));
                }),
                fmt::format("scheme: quantization_config.config_groups.group_0.weights.{} is {}; "
                            "expected an integer",
                            field, value));
}

// The section of a folder of another method, wherever it lies; nothing for compressed-tensors.
std::optional<Json> section_of(const fs::path& folder) {
  const auto read = [&](std::string_view name) {
    return parse_json(read_text_file((folder / name).string(), 1 << 20), std::string(name));
  };
  const Json config = read("config.json");
  const Json* own = config.find("quantization_config");
  const bool mlx = own == nullptr || own->find("quant_method") == nullptr;
  if (own == nullptr) own = config.find("quantization");
  std::string_view method = mlx ? "mlx" : "";
  std::optional<Json> section = own != nullptr ? std::optional<Json>(*own) : std::nullopt;
  for (const ConfigFile& file : other_config_files())
    if (!section && fs::exists(folder / file.name)) section = read(file.name), method = file.method;
  if (!section) return std::nullopt;
  if (section->find("quant_method") == nullptr) section->set("quant_method", std::string(method));
  const QuantMethod* found = find_method(section->find("quant_method")->as_string());
  const bool named = found == find_method("compressed-tensors") || found == find_method("mxfp4");
  return named ? std::nullopt : section;
}

// The tensors of a module under the names that the file has for them.
Given given_as_stored(const Checkpoint& c, const Module& m, const std::string& prefix) {
  Given given;
  for (const TensorRef& ref : m.plan.tensors.by_role)
    if (ref) {
      std::string suffix = ref.info->name.substr(ref.info->name.rfind('.') + 1);
      if (const size_t stack = suffix.find("_proj_scale"); stack != std::string::npos)
        suffix = "weight" + suffix.substr(stack + 5);
      given.add(c.store(), ref, prefix + suffix, is_apart(m));
    }
  return given;
}

// A caller hands over the section of a folder and its tensors, both as they are stored: what vLLM's
// loader has.
TEST(LayerBuild, OtherMethodsByTheirOwnNames) {
  const EqualFreshMemory fresh;
  ThreadPool pool(2);
  const LayerOptions o = options_for(pool);
  std::set<std::string> methods;
  size_t linears = 0, experts = 0;
  for (const fs::path& folder : golden_folders()) {
    const std::optional<Json> section = section_of(folder);
    if (!section) continue;
    const Checkpoint c = Checkpoint::open(folder.string());
    methods.emplace(c.quant().method());
    const auto scheme = [&](const Module& m) {
      Json named = *section;
      const std::string& tensor = codes_of(m).info->name;  // rules go by the names of the file
      named.set("module", tensor.substr(0, tensor.rfind('.')));
      return parse_stored_scheme(named.dump());
    };
    for (const Module& m : c.modules()) {
      if (m.kind != ModuleKind::kLinear || m.layer > 0 || m.decision.scheme.is_dense()) continue;
      if (codes_of(m).row_count != 0) continue;  // one half of a matrix
      SCOPED_TRACE(folder.filename().string() + " " + m.name);
      const auto want = load_linear(c, {&m}, o);
      const StoredScheme s = scheme(m);
      EXPECT_EQ(describe(s.scheme), describe(m.decision.scheme));
      const Given given = given_as_stored(c, m, "");
      for (const SuffixNeed& need : suffixes_of(s))
        EXPECT_TRUE(!need.required ||
                    std::any_of(given.tensors.begin(), given.tensors.end(),
                                [&](const TensorData& t) { return t.name == need.suffix; }))
            << need.suffix;
      std::unique_ptr<LinearLayer> got;
      ASSERT_EQ(words_of([&] {
                  got = build_linear(
                      {{m.name, s, m.plan.N, m.plan.K, Cut::kWhole, 0, 0, given.tensors}}, o);
                }),
                "");
      ASSERT_EQ(got->packed_bytes(), want->packed_bytes());
      EXPECT_TRUE(std::equal(got->packed().begin(), got->packed().end(), want->packed().begin()));
      ++linears;
    }
    for (const MoeBlock& block : c.moe_blocks()) {
      const auto& first = block.experts[0];
      if (first[0] == nullptr || first[1]->decision.scheme.is_dense()) continue;
      SCOPED_TRACE(folder.filename().string() + " " + block.name);
      ExpertsBuilder::Description d;
      d.name = block.name;
      d.spec = block.spec;
      d.spec.shared = SharedKind::kNone;
      d.router = {block.correction_bias, block.per_expert_scale, {}};
      d.schemes = {scheme(*first[0]), scheme(*first[1]), scheme(*first[2])};
      ExpertsBuilder builder(std::move(d), o);
      std::unique_ptr<MoeLayer> got;
      ASSERT_EQ(words_of([&] {
                  for (size_t e = 0; e < block.experts.size(); ++e) {
                    Given all = given_as_stored(c, *block.experts[e][0], "gate.");
                    const Given up = given_as_stored(c, *block.experts[e][1], "up."),
                                down = given_as_stored(c, *block.experts[e][2], "down.");
                    for (const Given* more : {&up, &down})
                      all.tensors.insert(all.tensors.end(), more->tensors.begin(),
                                         more->tensors.end());
                    builder.set_expert(e, all.tensors);
                  }
                  got = builder.finish();
                }),
                "");
      expect_equal(*got, *load_moe(c, block, o, MoePart::kExperts).experts, pool);
      ++experts;
    }
  }
  EXPECT_EQ(methods, (std::set<std::string>{"auto-round", "awq", "fbgemm_fp8", "fp8", "gptq", "mlx",
                                            "modelopt", "quark"}));
  EXPECT_GT(linears, 80u);
  EXPECT_GT(experts, 20u);
}

TEST(LayerBuild, SectionsOfOtherMethodsAreCheckedInWords) {
  ThreadPool pool(1);
  const LayerOptions o = options_for(pool);
  const auto scheme = [](const char* json) { return parse_stored_scheme(json); };
  EXPECT_TRUE(words_of([&] {
                scheme(R"({"quant_method": "gptq", "bits": 4, "module": 3})");
              }).find("module is") != std::string::npos);
  EXPECT_TRUE(words_of([&] {
                scheme(R"({"quant_method": "gptq", "bits": 9})");
              }).find("bits is 9") != std::string::npos);
  EXPECT_TRUE(words_of([&] { scheme(R"({"quant_method": "hqq"})"); }).find("hqq") !=
              std::string::npos);
  EXPECT_TRUE(scheme(R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
      "quantized_layers": {"a": {"quant_algo": "FP8"}}, "module": "b"})")
                  .scheme.is_dense());
  const StoredScheme fp8 = scheme(R"({"quant_method": "fp8", "weight_block_size": [32, 32]})");
  const std::vector<uint8_t> bytes(32 * 32 * 4);
  const TensorData weight{"weight", DType::kF8E4M3, {32, 32}, std::span(bytes).first(32 * 32)},
      floats{"weight", DType::kF32, {32, 32}, bytes},
      scale{"weight_scale_inv", DType::kF32, {1, 1}, std::span(bytes).first(4)},
      twin{"scale", DType::kF32, {1, 1}, std::span(bytes).first(4)},
      other{"qweight", DType::kI32, {4, 32}, std::span(bytes).first(512)};
  const auto said = [&](std::vector<TensorData> tensors) {
    return words_of([&] {
      build_linear({{"q", fp8, 32, 32, Cut::kWhole, 0, 0, std::move(tensors)}}, o);
    });
  };
  EXPECT_NE(said({weight, scale, twin}).find("are both its weight_scale"), std::string::npos);
  EXPECT_NE(said({weight}).find("no tensor weight_scale_inv or weight_scale belongs to q"),
            std::string::npos)
      << said({weight});
  EXPECT_NE(said({weight, scale, other})
                .find("'q.qweight' has no meaning here; expected q.weight, "
                      "q.weight_scale_inv, "),
            std::string::npos)
      << said({weight, scale, other});
  EXPECT_NE(said({floats, scale}).find("is F32[32,32]; expected dtype F8_E4M3"), std::string::npos)
      << said({floats, scale});
}

TEST(LayerBuild, WhatIsWrongIsSaidInWords) {
  ThreadPool pool(1);
  const LayerOptions o = options_for(pool);
  const Checkpoint c =
      Checkpoint::open((test::test_data_dir() / "golden" / "qwen3moe-w4a16-g32").string());
  const MoeBlock& block = c.moe_blocks().at(0);
  ExpertsBuilder::Description d;
  d.spec = block.spec;
  d.schemes.fill(stored(c, block.experts[0][1]));
  ExpertsBuilder builder(d, o);
  const auto expert = [&] {
    Given given;
    given.add(c.store(), *block.experts[0][0], "gate.");
    given.add(c.store(), *block.experts[0][1], "up.");
    given.add(c.store(), *block.experts[0][2], "down.");
    return given;
  };
  const auto says = [&](size_t id, const Given& given, std::string_view word) {
    const std::string words = words_of([&] { builder.set_expert(id, given.tensors); });
    EXPECT_NE(words.find(word), std::string::npos) << words;
  };
  Given missing = expert(), strange = expert(), short_one = expert(), typed = expert(),
        extra = expert(), twice = expert();
  missing.tensors.pop_back(), missing.tensors.pop_back(), missing.tensors.pop_back();
  says(0, missing, "down");
  strange.tensors[0].name = "left.weight_packed";
  says(0, strange, "left.weight_packed");
  strange.tensors[0].name = "gate.weight_wrapped";
  says(0, strange, "gate.weight_wrapped");
  short_one.tensors[0].shape[0] -= 1;
  says(0, short_one, "bytes");
  short_one.tensors[0].data = short_one.tensors[0].data.first(short_one.tensors[0].data.size() /
                                                              (short_one.tensors[0].shape[0] + 1) *
                                                              short_one.tensors[0].shape[0]);
  says(0, short_one, "expected");
  typed.tensors[0].dtype = DType::kF32;
  says(0, typed, "gate.weight_packed");
  extra.tensors.push_back(extra.tensors[0]);
  extra.tensors.back().name = "gate.weight_global_scale";
  says(0, extra, "weight_global_scale");
  extra.tensors.back().name = extra.tensors[0].name;
  says(0, extra, "gate.weight_packed");
  says(block.experts.size(), expert(), "not one of this rank's");
  EXPECT_NE(words_of([&] { builder.finish(); }).find("expert 0 was not given"), std::string::npos);
  for (size_t e = 0; e < block.experts.size(); ++e) builder.set_expert(e, expert().tensors);
  says(0, twice, "twice");
  EXPECT_NE(builder.finish(), nullptr);
  says(0, twice, "finished");
  EXPECT_NE(words_of([&] { builder.finish(); }), "");
  d.expert_map = {0, 0};
  EXPECT_THROW(ExpertsBuilder(d, o), Error);
  d.expert_map.clear();
  d.spec.router.top_k = 0;
  EXPECT_THROW(ExpertsBuilder(d, o), Error);
  EXPECT_THROW(build_linear({}, o), Error);
  EXPECT_THROW(build_linear({{"q", {}, 4, 4, Cut::kWhole, 0, 0, {}}}, o), Error);
  EXPECT_THROW(build_linear({{"q", {}, 0, 4, Cut::kWhole, 0, 0, {}}}, o), Error);
}

// What a call of the C interface that must fail says.
template <class T>
void fails(T* result, const char* word) {
  EXPECT_EQ(result, nullptr);
  EXPECT_NE(std::string(moebius_last_error()).find(word), std::string::npos)
      << moebius_last_error();
}
void fails(int status, const char* word) {
  EXPECT_NE(status, 0);
  EXPECT_NE(std::string(moebius_last_error()).find(word), std::string::npos)
      << moebius_last_error();
}

TEST(LayerBuild, BadCallsFromCAreWords) {
  fails(moebius_scheme_parse(nullptr), "NULL");
  fails(moebius_scheme_parse("{"), "scheme");
  moebius_scheme* dense = moebius_scheme_parse("{}");
  ASSERT_NE(dense, nullptr) << moebius_last_error();
  EXPECT_EQ(moebius_scheme_tensor_count(dense), 2u);
  EXPECT_STREQ(moebius_scheme_tensor(dense, 0, nullptr), "weight");
  fails(moebius_scheme_tensor(dense, 2, nullptr), "2");
  fails(moebius_scheme_parse(R"({"weights": {"num_bits": NaN}})"), "num_bits is NaN");
  fails(moebius_linear_build(nullptr, 0, nullptr), "part");
  for (float moebius_moe_spec::*const field :
       {&moebius_moe_spec::limit, &moebius_moe_spec::alpha, &moebius_moe_spec::scaling}) {
    moebius_moe_spec spec{};
    spec.size = sizeof spec;
    spec.hidden = spec.intermediate = 4;
    spec.experts = spec.slots = 1;
    spec.*field = std::numeric_limits<float>::quiet_NaN();
    fails(moebius_moe_begin(&spec, dense, dense, dense, nullptr), "nan; expected a finite number");
  }
  fails(moebius_linear_build(nullptr, 1, nullptr), "NULL");

  const float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const uint64_t shape[2] = {2, 4};
  const int64_t turned[2] = {1, 2};  // [2, 4] that lies as [4, 2]
  moebius_tensor t{};
  t.size = sizeof t;
  t.name = "weight";
  t.data = data;
  t.rank = 2;
  t.shape = shape;
  moebius_part part{};
  part.size = sizeof part;
  part.scheme = dense;
  part.outputs = 2;
  part.inputs = 4;
  part.tensors = &t;
  part.tensor_count = 1;
  moebius_options options{};
  options.size = sizeof options;
  options.activations = MOEBIUS_F32;
  options.threads = 1;
  const auto run = [&](moebius_linear* layer) {
    EXPECT_NE(layer, nullptr) << moebius_last_error();
    const float x[4] = {1, 10, 100, 1000};
    std::vector<float> y(2);
    const moebius_input in = {sizeof(moebius_input), x, MOEBIUS_F32, 1, 4, 0};
    const moebius_output out = {sizeof(moebius_output), y.data(), MOEBIUS_F32, 1, 2, 0};
    EXPECT_EQ(moebius_linear_run(layer, &in, &out), 0) << moebius_last_error();
    moebius_linear_free(layer);
    return y;
  };
  EXPECT_EQ(run(moebius_linear_build(&part, 1, &options)), (std::vector<float>{4321, 8765}));
  t.stride = turned;
  EXPECT_EQ(run(moebius_linear_build(&part, 1, &options)), (std::vector<float>{7531, 8642}));
  t.stride = nullptr;
  const auto with = [&](auto& member, auto value, const char* word) {
    const auto before = member;
    member = value;
    fails(moebius_linear_build(&part, 1, &options), word);
    member = before;
  };
  with(t.size, size_t{0}, "size");
  with(t.name, static_cast<const char*>(nullptr), "NULL");
  with(t.name, "wheel", "wheel");
  with(t.data, static_cast<const void*>(nullptr), "no data");
  with(t.shape, static_cast<const uint64_t*>(nullptr), "NULL");
  with(t.rank, size_t{5}, "dimensions");
  with(t.rank, size_t{1}, "weight");
  with(t.type, MOEBIUS_TENSOR_I8, "I8");
  with(part.size, size_t{4}, "size");
  with(part.outputs, size_t{3}, "3");
  with(part.outputs, size_t{1} << 60, "outputs");
  with(part.tensor_count, size_t{0}, "weight");
  with(options.tp_rank, size_t{1}, "tp_rank");
  with(options.ep, size_t{1} << 40, "ep_rank");
  const uint64_t huge[2] = {uint64_t{1} << 40, uint64_t{1} << 40};
  with(t.shape, static_cast<const uint64_t*>(huge), "too large");

  // Whatever is wrong with a part, the message has its name.
  part.name = "model.q_proj";
  const auto named = [&](auto& member, auto value) {
    with(member, value, "model.q_proj");
    EXPECT_STREQ(moebius_last_error_field("module"), "model.q_proj") << moebius_last_error();
  };
  named(t.size, size_t{0});
  named(t.name, static_cast<const char*>(nullptr));
  named(t.name, "wheel");
  named(t.data, static_cast<const void*>(nullptr));
  named(t.shape, static_cast<const uint64_t*>(nullptr));
  named(t.rank, size_t{5});
  named(t.rank, size_t{1});
  named(t.type, MOEBIUS_TENSOR_I8);
  named(part.outputs, size_t{3});
  named(part.tensor_count, size_t{0});
  named(t.shape, static_cast<const uint64_t*>(huge));
  // Names that are equal, begin each other or are missing keep the parts apart.
  for (const char* other : {"model.q_proj", "model.q_proj.x", "model", "part 0", "", "part 1"}) {
    moebius_part two[2] = {part, part};
    two[1].name = other;
    moebius_linear* layer = moebius_linear_build(two, 2, &options);
    EXPECT_NE(layer, nullptr) << other << ": " << moebius_last_error();
    moebius_linear_free(layer);
  }

  moebius_moe_spec spec{};
  fails(moebius_moe_begin(nullptr, dense, dense, dense, &options), "NULL");
  fails(moebius_moe_begin(&spec, dense, dense, dense, &options), "size");
  spec.size = sizeof spec;
  fails(moebius_moe_begin(&spec, dense, dense, dense, &options), "outputs");
  spec.hidden = 4, spec.intermediate = 2, spec.experts = 1, spec.slots = 1;
  spec.activation = "swish9000";
  fails(moebius_moe_begin(&spec, dense, dense, dense, &options), "swish9000");
  spec.activation = nullptr;
  spec.scoring = "dice";
  fails(moebius_moe_begin(&spec, dense, dense, dense, &options), "dice");
  spec.scoring = nullptr;
  moebius_moe_builder* builder = moebius_moe_begin(&spec, dense, nullptr, dense, &options);
  ASSERT_NE(builder, nullptr) << moebius_last_error();
  fails(moebius_moe_set_expert(nullptr, 0, &t, 1), "NULL");
  fails(moebius_moe_set_expert(builder, 1, &t, 1), "expert 1");
  fails(moebius_moe_set_expert(builder, 0, nullptr, 1), "NULL");
  fails(moebius_moe_set_expert(builder, 0, &t, 1), "weight");
  fails(moebius_moe_finish(builder), "expert 0 was not given");
  fails(moebius_moe_finish(reinterpret_cast<moebius_moe_builder*>(dense)), "scheme");
  moebius_scheme_free(dense);
  moebius_scheme_free(dense);  // an error in words
  fails(moebius_scheme_describe(dense), "freed");
  with(part.scheme, static_cast<const moebius_scheme*>(dense), "freed");
  moebius_moe_builder_free(builder);
  fails(moebius_moe_finish(builder), "freed");

  moebius_runtime_options threads{};
  fails(moebius_runtime_new_with(&threads), "size");
  threads.size = sizeof threads;
  threads.cpu_count = 1;
  fails(moebius_runtime_new_with(&threads), "NULL");
  const int32_t twice[2] = {0, 0};
  threads.cpus = twice;
  threads.cpu_count = 2;
  fails(moebius_runtime_new_with(&threads), "CPU");
}

}  // namespace
}  // namespace moebius::layer_build_test
