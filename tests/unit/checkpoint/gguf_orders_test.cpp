// SPDX-License-Identifier: Apache-2.0
// Columns of GGUF matrices that lie in another order (Qwen3.5's value heads): every type gives the
// numbers of the same blocks in Hugging Face's order.
#include <gtest/gtest.h>

#include <vector>

#include "checkpoint/formats/format.h"
#include "checkpoint/formats/gguf.h"
#include "gguf/names.h"
#include "quant/reference.h"
#include "unit/checkpoint/checkpoint_util.h"
#include "unit/gguf/gguf_bytes.h"

namespace moebius::test::gguf_orders_test {
namespace {

constexpr size_t kRows = 3, kKeyHeads = 2, kEach = 2, kWidth = 128;
constexpr size_t kColumns = kKeyHeads * kEach * kWidth;

constexpr std::string_view kConfig = R"({"num_hidden_layers": 1, "num_experts": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128})";

// Writes a file whose attn_output and ssm_out have the same bytes of a type.
Gguf file_of(const TempDir& dir, uint32_t id, size_t numbers, size_t bytes) {
  std::string data(kRows * kColumns / numbers * bytes, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>((i * 37 + 11) % 59);
  GgufBytes file;
  file.text("general.architecture", "qwen35moe").u32("qwen35moe.expert_count", 4);
  file.tensor("blk.0.attn_output.weight", {kColumns, kRows}, id, data);
  file.tensor("blk.0.ssm_out.weight", {kColumns, kRows}, id, data);
  write_file(dir / "m.gguf", file.bytes());
  return Gguf::open(dir / "m.gguf");
}

TensorStore store_of(const Gguf& gguf) {
  return TensorStore::of_gguf(gguf, name_tensors(gguf, parse_json(kConfig, "config")));
}

std::vector<float> numbers_of(const TensorStore& store, std::string_view name) {
  ModuleTensors tensors;
  tensors.name = name;
  tensors[Role::kWeight].info = &store.require(name);
  Scheme scheme;
  if (const GgufType* type = tensors[Role::kWeight].info->gguf) scheme = *scheme_of_gguf(*type);
  const FormatReader& reader = reader_for(scheme.format);
  const MatrixPlan plan = reader.plan(tensors, scheme, store, 0, 0, "");
  LoadBuffer buffer;
  std::vector<float> out(plan.N * plan.K);
  dequantize(reader.load(plan, store, buffer), out.data());
  return out;
}

TEST(GgufOrders, ValueHeadsReturnToTheirKeyHeads) {
  struct Type {
    uint32_t id;
    size_t numbers, bytes;
  };
  // F32, BF16, Q4_0, Q8_0, Q2_K, Q4_K, Q6_K, IQ4_XS, MXFP4: blocks of one number to two heads.
  for (const Type& type : {Type{0, 1, 4},
                           {30, 1, 2},
                           {2, 32, 18},
                           {8, 32, 34},
                           {10, 256, 84},
                           {12, 256, 144},
                           {14, 256, 210},
                           {23, 256, 136},
                           {39, 32, 17}}) {
    SCOPED_TRACE(type.id);
    const TempDir dir;
    const Gguf gguf = file_of(dir, type.id, type.numbers, type.bytes);
    const TensorStore store = store_of(gguf);
    const std::vector<float> stored = numbers_of(store, "model.layers.0.self_attn.o_proj.weight"),
                             found =
                                 numbers_of(store, "model.layers.0.linear_attn.out_proj.weight");
    ASSERT_EQ(found.size(), kRows * kColumns);
    for (size_t row = 0; row < kRows; ++row)
      for (size_t key = 0; key < kKeyHeads; ++key)
        for (size_t each = 0; each < kEach; ++each)
          for (size_t i = 0; i < kWidth; ++i)
            ASSERT_EQ(found[row * kColumns + (key * kEach + each) * kWidth + i],
                      stored[row * kColumns + (each * kKeyHeads + key) * kWidth + i])
                << row << " " << key << " " << each << " " << i;
  }
}

TEST(GgufOrders, GroupsWiderThanAHeadAreRefused) {
  const TempDir dir;
  const Gguf gguf = file_of(dir, 35, 256, 66);  // TQ2_0: one scale for 256 numbers
  const TensorStore store = store_of(gguf);
  const std::string message =
      error_of([&] { numbers_of(store, "model.layers.0.linear_attn.out_proj.weight"); });
  EXPECT_TRUE(contains(message, "groups that divide heads of 128 columns")) << message;
}

}  // namespace
}  // namespace moebius::test::gguf_orders_test
