// SPDX-License-Identifier: Apache-2.0
// Hashed n-grams (nn/ngram_hash.h) against numbers of transformers 5.22.2, the tokens before a row in any
// pieces, and tables that stay in their files (checkpoint/row_table.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/numeric.h"
#include "checkpoint/row_table.h"
#include "nn/ngram_hash.h"
#include "unit/test_util.h"

namespace moebius::ngram_test {
namespace {

TEST(NGrams, MultipliersAndSizesAreThoseOfTheLibrary) {
  NGramSpec s;
  s.vocab = 248320, s.base = 20'000'000, s.seed = 1234;
  const NGramHash first = NGramHash::of(s, 0), second = NGramHash::of(s, 1);
  EXPECT_EQ(first.multipliers,
            (std::vector<int64_t>{23703573157769, 20109073645365, 8052911324071}));
  EXPECT_EQ(second.multipliers,
            (std::vector<int64_t>{3352040966061, 19752442147475, 10742103100073}));
  ASSERT_EQ(first.sizes.size(), 16u);
  EXPECT_EQ(first.sizes[0], 20000003);
  EXPECT_EQ(first.sizes[15], 20000171);
  EXPECT_EQ(second.sizes[0], 20000213);
  EXPECT_EQ(second.sizes[3], 20000269);
  EXPECT_EQ(first.offsets[1], 20000003);
}

// [T, size] of tokens, in pieces.
std::vector<float> contexts(const TokenContext& net, const std::vector<float>& tokens, size_t size,
                            size_t piece) {
  std::vector<float> out(tokens.size() * size), state[2];
  for (size_t t = 0; t < tokens.size(); t += piece) {
    const size_t n = std::min(piece, tokens.size() - t), now = t / piece % 2;
    const RecurrentRows rows{tokens.data() + t, nullptr, out.data() + t * size};
    const float* from = t == 0 ? nullptr : state[1 - now].data();
    for (size_t i = 0; i < n; ++i) net.finish(rows, from, i);
    state[now].resize(size - 1);
    net.keep(rows, {0, n, from, state[now].data()}, from);
  }
  return out;
}

TEST(NGrams, RowsAreThoseOfTheLibraryInAnyPieces) {
  NGramSpec s;
  s.vocab = 248320, s.base = 50, s.seed = 1234, s.heads = 2, s.eos = 5;
  const NGramHash hash = NGramHash::of(s, 1);
  EXPECT_EQ(hash.sizes, (std::vector<int64_t>{71, 73, 79, 83}));
  EXPECT_EQ(hash.offsets, (std::vector<int64_t>{0, 71, 144, 223}));
  EXPECT_EQ(hash.rows(), 306);
  const std::vector<float> tokens = {7, 248319, 5, 9, 11, 13, 5, 5, 17};
  const int64_t want[9][4] = {{47, 135, 201, 272}, {65, 93, 185, 279},  {51, 78, 174, 295},
                              {37, 98, 168, 247},  {29, 130, 203, 247}, {30, 125, 174, 260},
                              {2, 87, 154, 280},   {7, 74, 148, 282},   {25, 96, 170, 236}};
  const TokenContext net(3, 5);
  for (const size_t piece : {1u, 2u, 4u, 9u}) {
    const std::vector<float> all = contexts(net, tokens, 3, piece);
    for (size_t t = 0; t < tokens.size(); ++t) {
      int64_t context[3], ids[4];
      for (size_t i = 0; i < 3; ++i) context[i] = static_cast<int64_t>(all[t * 3 + i]);
      hash.ids(context, ids);
      for (size_t h = 0; h < 4; ++h)
        EXPECT_EQ(ids[h], want[t][h]) << "pieces of " << piece << ", token " << t;
    }
  }
  EXPECT_THROW(TokenContext(1, 5), Error);
  EXPECT_THROW(TokenContext(3, -1), Error);
}

// Two shards of E4M3 with one scale, and a third with a scale of its own, in two files.
TEST(RowTable, ShardsAreReadFromFilesThatStayAsTheyAre) {
  const test::TempDir dir;
  const size_t width = 4;
  std::vector<uint8_t> codes(5 * width);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(0x28 + 3 * i);
  const float scale = 0.5f, own = 4.0f;
  const auto bytes_of = [](const float& f) {
    return std::span(reinterpret_cast<const uint8_t*>(&f), sizeof(f));
  };
  const auto rows = [&](size_t first, size_t count) {
    return std::span<const uint8_t>(codes).subspan(first * width, count * width);
  };
  const std::string a = (dir / "a.safetensors").string(), b = (dir / "b.safetensors").string();
  write_safetensors(
      a, std::vector<TensorData>{{"t.shard_0.weight", DType::kF8E4M3, {2, width}, rows(0, 2)},
                                 {"t.shard_1.weight", DType::kF8E4M3, {1, width}, rows(2, 1)},
                                 {"t.weight_scale", DType::kF32, {1}, bytes_of(scale)}});
  write_safetensors(
      b, std::vector<TensorData>{{"t.shard_2.weight", DType::kF8E4M3, {2, width}, rows(3, 2)},
                                 {"t.shard_2.weight_scale", DType::kF32, {1}, bytes_of(own)}});
  std::ofstream(dir / "model.safetensors.index.json")
      << R"({"weight_map": {"t.shard_0.weight": "a.safetensors", "t.shard_1.weight": "a.safetensors",
             "t.weight_scale": "a.safetensors", "t.shard_2.weight": "b.safetensors",
             "t.shard_2.weight_scale": "b.safetensors"}})";
  std::vector<std::string> warnings;
  std::optional<TensorStore> store = TensorStore::open_folder(dir.path().string(), warnings);
  const RowTable table(*store, "t", width);
  EXPECT_THROW(RowTable(*store, "t", width + 1), Error);
  EXPECT_THROW(RowTable(*store, "u", width), Error);
  store.reset();  // files stay open
  EXPECT_EQ(table.rows(), 5u);
  float row[width];
  for (uint64_t r = 0; r < 5; ++r) {
    table.will_need(r);
    table.read(r, row);
    for (size_t i = 0; i < width; ++i)
      EXPECT_EQ(row[i], e4m3_to_f32(codes[r * width + i]) * (r < 3 ? scale : own)) << r;
  }
  const int64_t first[] = {0, 2}, last[] = {3};
  table.check(first), table.check(last);
  std::filesystem::last_write_time(
      b, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  table.check(first);
  try {
    table.check(last);
    ADD_FAILURE() << "a changed file is not noticed";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("b.safetensors: was changed while it is in use"),
              std::string::npos)
        << e.what();
  }
  std::filesystem::remove(a);
  EXPECT_THROW(table.check(first), Error);
}

}  // namespace
}  // namespace moebius::ngram_test
