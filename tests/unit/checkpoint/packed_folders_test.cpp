// SPDX-License-Identifier: Apache-2.0
// Folders of GPTQ, AWQ and AutoRound as a whole: which modules are quantized and by which rule, what
// is said about files that contradict their configuration, and one model in several forms.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>

#include "quant/reference.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::packed_folders_test {
namespace {

namespace fs = std::filesystem;

Checkpoint golden(const std::string& name) {
  return Checkpoint::open((test_data_dir() / "golden" / name).string());
}

std::string scheme_of(const Checkpoint& c, const std::string& module) {
  const Module* m = c.find_module(module);
  return m == nullptr ? "no such module" : describe(m->plan.scheme);
}

std::string all_warnings(const Checkpoint& c) {
  std::string text;
  for (const std::string& w : c.warnings()) text += w + "\n";
  return text;
}

// A copy of a golden folder whose configuration is changed by text.
std::string changed(const TempDir& dir, const std::string& name, const std::string& from,
                    const std::string& to) {
  fs::copy(test_data_dir() / "golden" / name, dir.path());
  std::string text = read_file(dir / "config.json");
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  std::ofstream(dir / "config.json") << text;
  return dir.path().string();
}

TEST(PackedFolders, QuantizedRouterAndOutputProjection) {
  const Checkpoint c = golden("qwen3moe-gptq-w4-g32");
  EXPECT_EQ(c.quant().method(), "gptq");
  EXPECT_EQ(scheme_of(c, "model.layers.0.mlp.gate"), "w4a16 int4 g32 sym act-order, gptq");
  EXPECT_EQ(scheme_of(c, "lm_head"), "w4a16 int4 g32 sym act-order, gptq");
  EXPECT_TRUE(c.find_module("lm_head")->plan.act_order);
  EXPECT_EQ(scheme_of(c, "model.embed_tokens"), "dense");
  EXPECT_EQ(all_warnings(c), "");
  c.require_supported();
}

TEST(PackedFolders, ConfigurationInAFileOfItsOwn) {
  const Checkpoint c = golden("mixtral-gptq-w4-asym-g32");
  EXPECT_EQ(c.quant().method(), "gptq");
  EXPECT_EQ(scheme_of(c, "model.layers.1.block_sparse_moe.experts.3.w2"),
            "w4a16 int4 g32 asym, gptq");
  EXPECT_TRUE(contains(all_warnings(c), "qzeros hold 15")) << all_warnings(c);
}

TEST(PackedFolders, RulesGiveWidths) {
  const Checkpoint c = golden("qwen3moe-gptq-v2-dynamic");
  EXPECT_EQ(scheme_of(c, "model.layers.0.self_attn.q_proj"),
            "w8a16 int8 per channel asym, gptq_v2");
  EXPECT_EQ(scheme_of(c, "model.layers.0.self_attn.v_proj"), "dense");
  EXPECT_EQ(c.find_module("model.layers.0.self_attn.v_proj")->decision.rule,
            "dynamic '-:.*v_proj$'");
  EXPECT_EQ(scheme_of(c, "model.layers.1.mlp.experts.2.down_proj"), "w2a16 int2 g16 asym, gptq_v2");
  const Module* short_group = c.find_module("model.layers.1.mlp.experts.2.up_proj");
  EXPECT_EQ(describe(short_group->plan.scheme), "w4a16 int4 g48 sym, gptq_v2");
  EXPECT_EQ(short_group->plan.groups, 2u);
  EXPECT_EQ(all_warnings(c), "");
  const Checkpoint round = golden("glm4moe-autoround-mixed");
  EXPECT_EQ(scheme_of(round, "lm_head"), "w8a16 int8 g16 asym, gptq_v2");
  EXPECT_EQ(scheme_of(round, "model.layers.1.self_attn.o_proj"), "dense");
  EXPECT_EQ(scheme_of(round, "model.layers.1.mlp.experts.0.up_proj"),
            "w2a16 int2 g32 asym, gptq_v2");
  EXPECT_EQ(all_warnings(round), "");
}

TEST(PackedFolders, RealAutoRound) {
  const Checkpoint c = golden("qwen3moe-autoround-real-gptq");
  EXPECT_EQ(c.quant().method(), "auto-round");
  EXPECT_EQ(scheme_of(c, "model.layers.0.mlp.experts.0.up_proj"), "w4a16 int4 g32 sym, gptq");
  EXPECT_EQ(scheme_of(c, "model.layers.0.mlp.gate"), "dense");
  EXPECT_EQ(all_warnings(c), "");
  LoadBuffer buffer;
  bool negative = false;  // its symmetric scales have both signs
  for (const Module& m : c.modules()) {
    if (!has_matrix(m) || m.plan.scheme.is_dense()) continue;
    const QuantMatrix w = reader_for(m.plan.scheme.format).load(m.plan, c.store(), buffer);
    for (size_t i = 0; i < w.N * w.scale_stride; ++i) negative |= (w.scales[2 * i + 1] & 0x80) != 0;
  }
  EXPECT_TRUE(negative);
}

TEST(PackedFolders, TensorsCountAndListsThatLieAreSaid) {
  const TempDir zeros, head, list, order;
  const Checkpoint two =
      Checkpoint::open(changed(zeros, "qwen3moe-gptq-w4-g32", R"("checkpoint_format": "gptq")",
                               R"("checkpoint_format": "gptq_v2")"));
  EXPECT_TRUE(
      contains(all_warnings(two), "says format gptq_v2, but qzeros hold 7, as gptq has them"))
      << all_warnings(two);
  const Checkpoint stored = Checkpoint::open(
      changed(head, "qwen3moe-gptq-w4-g32", R"("lm_head": true)", R"("lm_head": false)"));
  EXPECT_TRUE(contains(all_warnings(stored),
                       "lm_head: stored quantized although lm_head false excludes it"))
      << all_warnings(stored);
  EXPECT_EQ(scheme_of(stored, "lm_head"), "w4a16 int4 g32 sym act-order, gptq");
  const Checkpoint lies =
      Checkpoint::open(changed(list, "deepseekv3-awq-g16", R"("kv_b")", R"("kv_a")"));
  EXPECT_TRUE(contains(all_warnings(lies), "modules_to_not_convert 'kv_a' excludes it"))
      << all_warnings(lies);
  EXPECT_TRUE(contains(all_warnings(lies), "stored as a plain weight although"))
      << all_warnings(lies);
  const Checkpoint unsaid = Checkpoint::open(
      changed(order, "qwen3moe-gptq-w4-g32", R"("desc_act": true)", R"("desc_act": false)"));
  EXPECT_TRUE(contains(all_warnings(unsaid), "does not say desc_act; it is used"))
      << all_warnings(unsaid);
}

void expect_same_matrix(const Module& m, const Checkpoint& a, const Module& n,
                        const Checkpoint& b) {
  LoadBuffer one, two;
  const QuantMatrix v = reader_for(m.plan.scheme.format).load(m.plan, a.store(), one);
  const QuantMatrix w = reader_for(n.plan.scheme.format).load(n.plan, b.store(), two);
  ASSERT_EQ(v.N, w.N) << m.name;
  ASSERT_EQ(v.K, w.K) << m.name;
  std::vector<float> x(v.N * v.K), y(v.N * v.K);
  dequantize(v, x.data());
  dequantize(w, y.data());
  EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0) << m.name;
}

std::vector<uint32_t> words_of(const TensorStore& store, const TensorInfo& t) {
  std::vector<uint32_t> out(t.bytes / 4);
  store.read(t, 0, {reinterpret_cast<uint8_t*>(out.data()), t.bytes});
  return out;
}

template <class T>
std::vector<uint8_t> turned_bytes(const std::vector<T>& from, size_t rows, size_t cols) {
  std::vector<T> to(from.size());
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < cols; ++c) to[c * rows + r] = from[r * cols + c];
  std::vector<uint8_t> bytes(to.size() * sizeof(T));
  std::memcpy(bytes.data(), to.data(), bytes.size());
  return bytes;
}

// The words of 8 outputs and one input each, in AWQ's order, from rows of words.
std::vector<uint8_t> awq_bytes(const std::vector<uint32_t>& rows, size_t N, size_t K) {
  constexpr size_t kOutputs[] = {0, 2, 4, 6, 1, 3, 5, 7};
  std::vector<uint32_t> out(K * N / 8, 0);
  for (size_t k = 0; k < K; ++k)
    for (size_t n = 0; n < N; n += 8)
      for (size_t i = 0; i < 8; ++i) {
        const uint32_t word = rows[(n + kOutputs[i]) * K / 8 + k / 8];
        out[k * N / 8 + n / 8] |= (word >> (4 * (k % 8)) & 15u) << (4 * i);
      }
  std::vector<uint8_t> bytes(out.size() * 4);
  std::memcpy(bytes.data(), out.data(), bytes.size());
  return bytes;
}

// A pack-quantized folder (int4, symmetric, groups of 32) in the layout of GPTQ or AWQ.
std::string rewritten(const TempDir& dir, const Checkpoint& from, const std::string& section,
                      bool awq) {
  std::deque<std::vector<uint8_t>> memory;
  std::vector<TensorData> tensors;
  const auto add = [&](const std::string& name, DType type, std::vector<uint64_t> shape,
                       std::vector<uint8_t> bytes) {
    tensors.push_back({name, type, std::move(shape), memory.emplace_back(std::move(bytes))});
  };
  const TensorStore& store = from.store();
  for (const Module& m : from.modules()) {
    const TensorRef& packed = m.plan.tensors[Role::kWeightPacked];
    if (!packed) {
      for (const TensorRef& ref : m.plan.tensors.by_role) {
        if (!ref) continue;
        std::vector<uint8_t> bytes(ref.info->bytes);
        store.read(*ref.info, 0, bytes);
        add(ref.info->name, ref.info->dtype, ref.info->shape, std::move(bytes));
      }
      continue;
    }
    const size_t N = m.plan.N, K = m.plan.K, G = m.plan.groups;
    const std::vector<uint32_t> words = words_of(store, *packed.info);
    const TensorInfo& scale = *m.plan.tensors[Role::kWeightScale].info;
    std::vector<uint16_t> scales(N * G);
    store.read(scale, 0, {reinterpret_cast<uint8_t*>(scales.data()), scale.bytes});
    add(m.name + ".scales", scale.dtype, {G, N}, turned_bytes(scales, N, G));
    if (awq) {
      add(m.name + ".qweight", DType::kI32, {K, N / 8}, awq_bytes(words, N, K));
    } else {
      add(m.name + ".qweight", DType::kI32, {K / 8, N}, turned_bytes(words, N, K / 8));
      add(m.name + ".qzeros", DType::kI32, {G, N / 8}, std::vector<uint8_t>(G * N / 2, 0x77));
    }
  }
  write_safetensors(dir / "model.safetensors", tensors);
  const Json old = parse_json(read_file(fs::path(from.folder()) / "config.json"), "config.json");
  Json config = Json::object();
  for (const auto& [key, value] : old.members())
    config.set(key, key == "quantization_config" ? parse_json(section, "section") : value);
  std::ofstream(dir / "config.json") << config.dump();
  return dir.path().string();
}

struct Stored {
  DType dtype;
  std::vector<uint64_t> shape;
  std::vector<uint8_t> bytes;
};

// Two matrices whose outputs are columns, side by side.
Stored joined(const Stored& a, const Stored& b) {
  Stored out{a.dtype, {a.shape[0], a.shape[1] + b.shape[1]}, {}};
  for (uint64_t r = 0; r < a.shape[0]; ++r)
    for (const Stored* s : {&a, &b}) {
      const size_t line = s->bytes.size() / a.shape[0];
      const auto at = s->bytes.begin() + static_cast<ptrdiff_t>(r * line);
      out.bytes.insert(out.bytes.end(), at, at + static_cast<ptrdiff_t>(line));
    }
  return out;
}

// A folder with its routed experts in other tensors: gate and up of an expert in one, or those of
// all experts in a stack.
std::string fused(const TempDir& dir, const Checkpoint& from, bool stacks) {
  std::map<std::string, Stored> out;
  std::map<std::string, const TensorInfo*> left;
  const auto read = [&](const TensorInfo& t) {
    Stored s{t.dtype, t.shape, std::vector<uint8_t>(t.bytes)};
    from.store().read(t, 0, s.bytes);
    return s;
  };
  for (const TensorInfo& t : from.store().tensors()) left[t.name] = &t;
  for (const MoeBlock& block : from.moe_blocks())
    for (size_t e = 0; e < block.experts.size(); ++e) {
      const auto& [gate, up, down] = block.experts[e];
      for (const TensorRef& ref : gate->plan.tensors.by_role) {
        if (!ref) continue;
        const std::string suffix = ref.info->name.substr(gate->name.size());
        const auto take = [&](const Module& m) {
          const auto it = left.find(m.name + suffix);
          EXPECT_NE(it, left.end()) << m.name << suffix;
          Stored s = read(*it->second);
          left.erase(it);
          return s;
        };
        const Stored first = take(*gate), second = take(*up), last = take(*down);
        Stored both = joined(first, second);
        const std::string stem = block.name + ".experts.";
        if (!stacks) {
          out[stem + std::to_string(e) + ".gate_up_proj" + suffix] = std::move(both);
          out[down->name + suffix] = last;
          continue;
        }
        for (const auto& [name, s] : {std::pair<std::string, const Stored*>{"gate_up_proj", &both},
                                      std::pair<std::string, const Stored*>{"down_proj", &last}}) {
          Stored& all = out[stem + name + suffix];
          all.dtype = s->dtype;
          all.shape = {e + 1, s->shape[0], s->shape[1]};
          all.bytes.insert(all.bytes.end(), s->bytes.begin(), s->bytes.end());
        }
      }
    }
  for (const auto& [name, info] : left) out[name] = read(*info);
  std::vector<TensorData> tensors;
  for (const auto& [name, s] : out) tensors.push_back({name, s.dtype, s.shape, s.bytes});
  write_safetensors(dir / "model.safetensors", tensors);
  fs::copy(fs::path(from.folder()) / "config.json", dir.path());
  return dir.path().string();
}

// Experts of GPTQ and AWQ in stacks, and gate and up in one matrix, are the matrices of the split
// folder.
TEST(PackedFolders, FusedExperts) {
  size_t compared = 0;
  for (const char* name :
       {"deepseekv3-awq-g16", "glm4moe-awq-sym-channel", "qwen3moe-autoround-real-gptq"})
    for (const bool stacks : {true, false}) {
      SCOPED_TRACE(fmt::format("{} {}", name, stacks ? "stacks" : "gate and up"));
      const Checkpoint split = golden(name);
      const TempDir dir;
      const Checkpoint other = Checkpoint::open(fused(dir, split, stacks));
      other.require_supported();
      for (const MoeBlock& block : split.moe_blocks())
        for (const auto& expert : block.experts)
          for (const Module* m : expert) {
            const Module* n = other.find_module(m->name);
            ASSERT_NE(n, nullptr) << m->name;
            EXPECT_EQ(n->plan.code_bytes, m->plan.code_bytes);
            EXPECT_EQ(n->plan.scale_bytes, m->plan.scale_bytes);
            expect_same_matrix(*m, split, *n, other);
            ++compared;
          }
    }
  EXPECT_GT(compared, 60u);
}

// The same symmetric int4 weights as compressed-tensors, GPTQ, AutoRound and AWQ without zero points
// are the same bytes for every kernel.
TEST(PackedFolders, OneModelInFourForms) {
  const Checkpoint packed = golden("qwen3moe-w4a16-g32");
  const TempDir gptq, round, awq;
  const std::string folders[] = {
      rewritten(gptq, packed, R"({"quant_method": "gptq", "bits": 4, "group_size": 32})", false),
      rewritten(round, packed,
                R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": true})",
                false),
      rewritten(awq, packed,
                R"({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": false})",
                true)};
  for (const std::string& folder : folders) {
    const Checkpoint other = Checkpoint::open(folder);
    EXPECT_EQ(all_warnings(other), "");
    size_t compared = 0;
    for (const Module& m : packed.modules()) {
      if (!has_matrix(m) || m.plan.scheme.is_dense()) continue;
      const Module* n = other.find_module(m.name);
      ASSERT_NE(n, nullptr) << m.name;
      LoadBuffer one, two;
      const QuantMatrix a = reader_for(m.plan.scheme.format).load(m.plan, packed.store(), one);
      const QuantMatrix b = reader_for(n->plan.scheme.format).load(n->plan, other.store(), two);
      ASSERT_EQ(a.row_bytes, b.row_bytes);
      ASSERT_EQ(a.scale_stride, b.scale_stride);
      EXPECT_EQ(a.code, b.code);
      EXPECT_EQ(b.zero_points, nullptr);
      EXPECT_EQ(std::memcmp(a.codes, b.codes, a.N * a.row_bytes), 0) << m.name;
      EXPECT_EQ(std::memcmp(a.scales, b.scales, a.N * a.scale_stride * 2), 0) << m.name;
      ++compared;
    }
    EXPECT_GT(compared, 20u);
  }
}

}  // namespace
}  // namespace moebius::test::packed_folders_test
