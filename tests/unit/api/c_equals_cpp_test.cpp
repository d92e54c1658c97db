// SPDX-License-Identifier: Apache-2.0
// The C interface gives the bytes of the C++ interface: every linear and block of some folders, every way to route, every element
// type, rows with a stride.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "base/numeric.h"
#include "moebius/moebius.h"
#include "moebius/moebius.hpp"
#include "unit/test_util.h"

namespace moebius::c_equals_cpp_test {
namespace {

struct FreeC {
  void operator()(moebius_folder* p) const { moebius_folder_free(p); }
  void operator()(moebius_linear* p) const { moebius_linear_free(p); }
  void operator()(moebius_moe* p) const { moebius_moe_free(p); }
};
template <class T>
using Handle = std::unique_ptr<T, FreeC>;

struct TypePair {
  ElementType cpp;
  moebius_type c;
  size_t bytes;
};
constexpr TypePair kTypes[] = {{ElementType::kF32, MOEBIUS_F32, 4},
                               {ElementType::kBf16, MOEBIUS_BF16, 2},
                               {ElementType::kF16, MOEBIUS_F16, 2}};

constexpr size_t kTokens = 3, kGap = 5;  // elements between rows

std::vector<uint8_t> wavy_rows(size_t cols, const TypePair& type) {
  const size_t stride = cols + kGap;
  std::vector<uint8_t> out(kTokens * stride * type.bytes);
  for (size_t i = 0; i < kTokens * stride; ++i) {
    const float v = std::sin(static_cast<float>(i) * 0.37f);
    const uint16_t half = type.cpp == ElementType::kBf16 ? f32_to_bf16(v) : f32_to_f16(v);
    if (type.bytes == 4) {
      std::memcpy(&out[i * 4], &v, 4);
    } else {
      std::memcpy(&out[i * 2], &half, 2);
    }
  }
  return out;
}

moebius_options c_options(const TypePair& type) {
  moebius_options o{};
  o.size = sizeof o;
  o.threads = 2;
  o.activations = type.c;
  return o;
}
Options cpp_options(const TypePair& type) {
  Options o;
  o.threads = 2;
  o.activations = type.cpp;
  return o;
}

void compare_linear(const Folder& folder, moebius_folder* c, const std::string& module,
                    const TypePair& type) {
  const Linear layer = folder.linear(module, cpp_options(type));
  const moebius_options options = c_options(type);
  const Handle<moebius_linear> twin(moebius_linear_load(c, module.c_str(), &options));
  ASSERT_NE(twin, nullptr) << moebius_last_error();
  const size_t K = layer.inputs(), N = layer.outputs();
  ASSERT_EQ(moebius_linear_inputs(twin.get()), K);
  ASSERT_EQ(moebius_linear_outputs(twin.get()), N);
  const std::vector<uint8_t> x = wavy_rows(K, type);
  std::vector<uint8_t> a(kTokens * (N + kGap) * type.bytes, 7), b = a;
  layer.run({x.data(), type.cpp, kTokens, K, K + kGap}, {a.data(), type.cpp, kTokens, N, N + kGap});
  const moebius_input in = {sizeof(moebius_input), x.data(), type.c, kTokens, K, K + kGap};
  const moebius_output out = {sizeof(moebius_output), b.data(), type.c, kTokens, N, N + kGap};
  ASSERT_EQ(moebius_linear_run(twin.get(), &in, &out), 0) << moebius_last_error();
  EXPECT_EQ(a, b) << module;
}

void compare_moe(const Folder& folder, moebius_folder* c, const std::string& block,
                 bool experts_only, const TypePair& type) {
  const Moe layer =
      folder.moe(block, cpp_options(type), experts_only ? MoeScope::kExperts : MoeScope::kBlock);
  const moebius_options options = c_options(type);
  const Handle<moebius_moe> twin(
      moebius_moe_load(c, block.c_str(), experts_only ? 1 : 0, &options));
  ASSERT_NE(twin, nullptr) << moebius_last_error();
  const size_t H = layer.hidden(), E = layer.experts(), k = layer.slots();
  ASSERT_EQ(moebius_moe_hidden(twin.get()), H);
  ASSERT_EQ(moebius_moe_experts(twin.get()), E);
  ASSERT_EQ(moebius_moe_slots(twin.get()), k);
  const std::vector<uint8_t> x = wavy_rows(H, type), scores = wavy_rows(E, kTypes[0]);
  std::vector<int32_t> ids(kTokens * k);
  std::vector<float> weights(kTokens * k, 0.25f);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i == 1 ? -1 : static_cast<int32_t>(i % E);
  const InputMatrix rows{x.data(), type.cpp, kTokens, H, H + kGap};
  const moebius_input in = {sizeof(moebius_input), x.data(), type.c, kTokens, H, H + kGap};
  const InputMatrix logits{scores.data(), ElementType::kF32, kTokens, E, E + kGap};
  const moebius_input c_logits = {
      sizeof(moebius_input), scores.data(), MOEBIUS_F32, kTokens, E, E + kGap};
  for (int way = experts_only ? 1 : 0; way < 3; ++way) {
    std::vector<uint8_t> a(kTokens * (H + kGap) * type.bytes, 7), b = a;
    const OutputMatrix y{a.data(), type.cpp, kTokens, H, H + kGap};
    const moebius_output out = {sizeof(moebius_output), b.data(), type.c, kTokens, H, H + kGap};
    int status = 0;
    if (way == 0) {
      layer.run(rows, y);
      status = moebius_moe_run(twin.get(), &in, &out, nullptr, nullptr);
    } else if (way == 1) {
      layer.run_logits(rows, logits, y);
      status = moebius_moe_run_logits(twin.get(), &in, &c_logits, &out, nullptr, nullptr);
    } else {
      layer.run_ids(rows, ids.data(), weights.data(), k, y);
      status = moebius_moe_run_ids(twin.get(), &in, ids.data(), weights.data(), k, &out);
    }
    ASSERT_EQ(status, 0) << moebius_last_error();
    EXPECT_EQ(a, b) << block << ", routing " << way;
    EXPECT_NE(a, std::vector<uint8_t>(a.size(), 7))
        << block << ", routing " << way << ": nothing was written";
  }
}

TEST(CEqualsCpp, EveryModuleOfSomeFolders) {
  for (const char* name : {"qwen3moe-w4a8-g32-pack", "qwen3moe-w4a16-asym-g32",
                           "qwen3moe-fp8-block", "qwen3moe-nvfp4", "qwen2moe-dense"}) {
    const std::string path = (test_data_dir() / "golden" / name).string();
    const Folder folder = Folder::open(path);
    const Handle<moebius_folder> c(moebius_folder_open(path.c_str()));
    ASSERT_NE(c, nullptr) << moebius_last_error();
    const std::vector<ModuleInfo> modules = folder.modules();
    ASSERT_EQ(moebius_folder_module_count(c.get()), modules.size());
    size_t linears = 0;
    for (size_t i = 0; i < modules.size(); ++i) {
      ASSERT_EQ(modules[i].name, moebius_folder_module_name(c.get(), i));
      ASSERT_EQ(modules[i].scheme, moebius_folder_module_scheme(c.get(), i));
      ASSERT_EQ(moebius_folder_module_problem(c.get(), i) == nullptr, modules[i].supported);
      if (modules[i].kind != "linear" || !modules[i].supported || ++linears % 4 != 1) continue;
      for (const TypePair& type : kTypes) compare_linear(folder, c.get(), modules[i].name, type);
    }
    EXPECT_GT(linears, 0u) << name;
    ASSERT_FALSE(folder.moe_blocks().empty());
    for (const TypePair& type : kTypes)
      for (const bool experts_only : {false, true})
        compare_moe(folder, c.get(), folder.moe_blocks().front(), experts_only, type);
  }
}

}  // namespace
}  // namespace moebius::c_equals_cpp_test
