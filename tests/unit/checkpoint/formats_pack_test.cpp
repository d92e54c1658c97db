// SPDX-License-Identifier: Apache-2.0
// pack-quantized: known vectors of the packing, round trips of every width and layout against a
// bit-by-bit packer, zero points, column groups, and every way such a module can be wrong.
#include <cmath>
#include <random>

#include "base/error.h"
#include "checkpoint/formats/unpack.h"
#include "quant/quant_access.h"
#include "unit/checkpoint/formats_util.h"

namespace moebius::test::formats_pack_test {
namespace {

std::vector<int> unpack_all(const std::vector<uint32_t>& words, size_t n, unsigned bits,
                            bool padded) {
  std::vector<int8_t> out(n);
  unpack_row(reinterpret_cast<const uint8_t*>(words.data()), n, bits, padded, out.data());
  for (size_t i = 0; i < n; ++i)
    EXPECT_EQ(unpack_one(reinterpret_cast<const uint8_t*>(words.data()), 4, i, bits, padded),
              out[i]);
  return {out.begin(), out.end()};
}

TEST(FormatsPack, KnownWords) {
  const struct {
    unsigned bits;
    bool padded;
    std::vector<int> values;
    std::vector<uint32_t> words;
  } vectors[] = {
      {4, false, {-8, -7, -1, 0, 1, 6, 7, 3, 2}, {0xBFE98710u, 0x0000000Au}},
      {2, false, {-2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, 1}, {0xE4E4E4E4u, 3u}},
      {8, false, {-128, -1, 0, 127, 5}, {0xFF807F00u, 0x00000085u}},
      {3, false, {-4, -3, -2, -1, 0, 1, 2, 3, -4, 3, 0}, {0x38FAC688u, 1u}},
      {3, true, {-4, -3, -2, -1, 0, 1, 2, 3, -4, 3, 0}, {0x38FAC688u, 4u}},
      {5, false, {-16, -1, 0, 15, 7, -8, 3}, {0xD17FC1E0u, 4u}},
      {5, true, {-16, -1, 0, 15, 7, -8, 3}, {0x117FC1E0u, 0x13u}},
      {4, false, {0, -8, 7, 1, -1, 2, -2, 3, -3}, {0xB6A79F08u, 5u}},
      {4, false, {-8, 7, 0, -1, 3, -4, 5, -6}, {0x2D4B78F0u}},
      {8, false, {-128, 127, 0, -1}, {0x7F80FF00u}},
      {2, false, {-2, -1, 0, 1, 1, 0, -1, -2, 0, 0, 1, 1, -2, -2, -1, -1}, {0x50FA1BE4u}},
  };
  for (const auto& v : vectors) {
    EXPECT_EQ(pack_words(v.values, v.bits, v.padded), v.words) << v.bits << " bits";
    EXPECT_EQ(unpack_all(v.words, v.values.size(), v.bits, v.padded), v.values)
        << v.bits << " bits";
  }
}

// A module "m" with random codes, and what it must decode to.
struct Module {
  FileMaker file;
  Scheme scheme;
  uint64_t N = 0, K = 0, groups = 1;
  std::vector<int> codes, zero_points;
  std::vector<float> scales;

  float want(size_t r, size_t c, const std::vector<int32_t>& g_idx = {}) const {
    const size_t block = K / groups;
    const size_t g = r * groups + (g_idx.empty() ? c / block : static_cast<size_t>(g_idx[c]));
    const int zp = zero_points.empty() ? 0 : zero_points[g];
    return static_cast<float>(codes[r * K + c] - zp) * scales[g];
  }
};

struct Options {
  bool padded = false, symmetric = true, plain_zero_points = false;
  DType scale = DType::kBf16;
  uint64_t N = 11;
};

std::vector<uint32_t> pack_rows(const std::vector<int>& codes, uint64_t N, uint64_t K,
                                unsigned bits, bool padded) {
  std::vector<uint32_t> out;
  for (uint64_t r = 0; r < N; ++r) {
    const auto at = [&](uint64_t row) {
      return codes.begin() + static_cast<std::ptrdiff_t>(row * K);
    };
    const std::vector<uint32_t> row = pack_words({at(r), at(r + 1)}, bits, padded);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

void fill(Module& m, unsigned bits, uint64_t K, uint64_t group, const Options& o) {
  std::mt19937 random(bits * 1000 + static_cast<unsigned>(K));
  m.N = o.N;
  m.K = K;
  m.groups = group == 0 ? 1 : K / group;
  m.scheme =
      scheme_of(Format::kPackQuantized,
                int_args(static_cast<int>(bits), group == 0 ? Strategy::kChannel : Strategy::kGroup,
                         static_cast<int64_t>(group), o.symmetric));
  const int half = 1 << (bits - 1);
  const auto any = [&] { return static_cast<int>(random() % (1u << bits)) - half; };
  for (uint64_t i = 0; i < m.N * K; ++i) m.codes.push_back(any());
  for (uint64_t i = 0; i < m.N * m.groups; ++i)
    m.scales.push_back(static_cast<float>(1 + random() % 200) / 256.0f);
  const std::vector<uint32_t> packed = pack_rows(m.codes, m.N, K, bits, o.padded);
  m.file.put("m.weight_packed", DType::kI32, {m.N, packed.size() / m.N}, packed);
  m.file.put("m.weight_shape", DType::kI64, {2},
             std::vector<int64_t>{static_cast<int64_t>(m.N), static_cast<int64_t>(K)});
  m.file.floats("m.weight_scale", o.scale, {m.N, m.groups}, m.scales);
  if (o.symmetric) return;
  for (uint64_t i = 0; i < m.N * m.groups; ++i) m.zero_points.push_back(any());
  if (o.plain_zero_points) {
    m.file.put("m.weight_zero_point", DType::kI8, {m.N, m.groups},
               std::vector<int8_t>(m.zero_points.begin(), m.zero_points.end()));
    return;
  }
  // Packed along the rows: each group is a column stream.
  std::vector<std::vector<uint32_t>> columns;
  for (uint64_t g = 0; g < m.groups; ++g) {
    std::vector<int> column;
    for (uint64_t r = 0; r < m.N; ++r) column.push_back(m.zero_points[r * m.groups + g]);
    columns.push_back(pack_words(column, bits, o.padded));
  }
  std::vector<uint32_t> words;
  for (size_t i = 0; i < columns[0].size(); ++i)
    for (const auto& column : columns) words.push_back(column[i]);
  m.file.put("m.weight_zero_point", DType::kI32, {columns[0].size(), m.groups}, words);
}

void expect_decodes(Module& m, const std::string& version = "0.19.0",
                    const std::vector<int32_t>& g_idx = {}) {
  const TensorStore& store = m.file.open();
  const auto loaded = run_reader(store, collect(store, "m"), m.scheme, version, m.N, m.K);
  ASSERT_EQ(loaded->view.N, m.N);
  ASSERT_EQ(loaded->view.K, m.K);
  EXPECT_EQ(loaded->plan.code, loaded->view.code);
  for (size_t r = 0; r < m.N; ++r)
    for (size_t c = 0; c < m.K; ++c) {
      ASSERT_EQ(int_code(loaded->view, r, c), m.codes[r * m.K + c]) << r << "," << c;
      ASSERT_EQ(weight_at(loaded->view, r, c), m.want(r, c, g_idx)) << r << "," << c;
    }
}

TEST(FormatsPack, EveryWidthLayoutAndZeroPointForm) {
  for (unsigned bits = 1; bits <= 8; ++bits)
    for (const bool padded : {false, true})
      for (const uint64_t K : {96u, 33u, 256u})
        for (const uint64_t group : {0u, 32u})
          for (int zero = 0; zero < 3; ++zero) {
            if (group != 0 && K % group != 0) continue;
            SCOPED_TRACE(fmt::format("bits {} padded {} K {} group {} zero {}", bits, padded, K,
                                     group, zero));
            Module m;
            Options o;
            o.padded = padded;
            o.symmetric = zero == 0;
            o.plain_zero_points = zero == 2;
            fill(m, bits, K, group, o);
            // Short streams fit both layouts (33 codes, 11 zero points): then the version tells.
            expect_decodes(m, padded ? "0.17.1" : "0.18.0");
          }
}

TEST(FormatsPack, ScaleTypesAndShapes) {
  for (const DType t : {DType::kF32, DType::kBf16, DType::kF16}) {
    Module m;
    Options o;
    o.scale = t;
    fill(m, 4, 64, 0, o);
    expect_decodes(m);
    m.file.floats("m.weight_scale", t, {m.N}, m.scales);  // [N] for [N,1]
    expect_decodes(m);
  }
}

TEST(FormatsPack, TensorStrategy) {
  Module m;
  fill(m, 4, 64, 0, {});
  m.scheme.weights->strategy = Strategy::kTensor;
  m.scales.assign(m.N, 0.5f);
  for (const std::vector<uint64_t>& shape :
       {std::vector<uint64_t>{}, std::vector<uint64_t>{1}, std::vector<uint64_t>{1, 1}}) {
    m.file.floats("m.weight_scale", DType::kF32, shape, {0.5f});
    expect_decodes(m);
  }
}

TEST(FormatsPack, WeightShapeForms) {
  Module m;
  fill(m, 4, 96, 32, {});
  m.file.put("m.weight_shape", DType::kI32, {2}, std::vector<int32_t>{11, 96});
  expect_decodes(m);
  m.file.put("m.weight_shape", DType::kI64, {2},
             std::vector<int64_t>{0, 0});  // zero-filled re-export
  expect_decodes(m);
  m.file.remove("m.weight_shape");
  expect_decodes(m);
  const TensorStore& store = m.file.open();  // nothing known but the words
  EXPECT_EQ(run_reader(store, collect(store, "m"), m.scheme)->view.K, 96u);
}

TEST(FormatsPack, ColumnGroups) {
  Module m;
  fill(m, 4, 96, 32, {});
  std::vector<int32_t> g_idx;
  for (int32_t c = 0; c < 96; ++c) g_idx.push_back((c * 7) % 3);
  m.file.put("m.weight_g_idx", DType::kI32, {96}, g_idx);
  m.scheme.weights->act_order = ActOrder::kGroup;
  expect_decodes(m, "0.18.0", g_idx);

  m.scheme.weights->act_order = ActOrder::kWeight;
  EXPECT_THROW(expect_decodes(m, "0.18.0", g_idx), Error);  // reorders without saying so
  m.scheme.weights->act_order = ActOrder::kGroup;

  std::vector<int32_t> broken = g_idx;
  broken[5] = 3;
  m.file.put("m.weight_g_idx", DType::kI32, {96}, broken);
  const TensorStore* store = &m.file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), m.scheme).find("weight_g_idx[5] is 3"),
            std::string::npos);
  broken[5] = -2;
  m.file.put("m.weight_g_idx", DType::kI32, {96}, broken);
  store = &m.file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), m.scheme).find("weight_g_idx[5] is -2"),
            std::string::npos);
  broken = g_idx;
  broken[0] = 1;  // one group too long, one too short
  m.file.put("m.weight_g_idx", DType::kI32, {96}, broken);
  store = &m.file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), m.scheme)
                .find("group 0 has 31 columns; expected 32"),
            std::string::npos);
  m.file.put("m.weight_g_idx", DType::kI32, {95}, std::vector<int32_t>(95, 0));
  store = &m.file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), m.scheme).find("I32[95]; expected [96]"),
            std::string::npos);
  m.file.put("m.weight_g_idx", DType::kI32, {96},
             std::vector<int32_t>(96, -1));  // uninitialised: identity
  expect_decodes(m);
  m.file.remove("m.weight_g_idx");  // not written when identity
  expect_decodes(m);
}

TEST(FormatsPack, SymmetricModulesMayCarryZeros) {
  Module m;
  fill(m, 4, 64, 32, {});
  m.file.put("m.weight_zero_point", DType::kI8, {11, 2}, std::vector<int8_t>(22, 0));
  expect_decodes(m);
  m.file.put("m.weight_zero_point", DType::kI32, {2, 2}, std::vector<uint32_t>(4, 0x88888888u));
  expect_decodes(m);
  for (const auto& wrong : {std::vector<int8_t>(22, 1)}) {
    m.file.put("m.weight_zero_point", DType::kI8, {11, 2}, wrong);
    const TensorStore& store = m.file.open();
    EXPECT_NE(reader_error(store, collect(store, "m"), m.scheme).find("symmetric"),
              std::string::npos);
  }
  m.file.put("m.weight_zero_point", DType::kI32, {2, 2}, std::vector<uint32_t>(4, 0x88888889u));
  const TensorStore& store = m.file.open();
  EXPECT_NE(reader_error(store, collect(store, "m"), m.scheme).find("symmetric"),
            std::string::npos);
}

TEST(FormatsPack, FusedExpertsAndHalves) {
  // 3 experts, rows 0..10 gate, 11..21 up; every role carries the expert and the rows.
  for (const unsigned bits : {2u, 3u, 4u, 8u})
    for (const bool interleaved : {false, true}) {
      std::vector<Module> experts(3);
      Bytes packed, scale, zero;
      uint64_t words = 0;
      Options o;
      o.symmetric = false;
      o.N = 22;
      for (Module& m : experts) fill(m, bits, 96, 32, o);
      FileMaker file;
      std::mt19937 random(bits);
      for (Module& m : experts) {
        for (int& c : m.codes) c = static_cast<int>(random() % (1u << bits)) - (1 << (bits - 1));
        const std::vector<uint32_t> rows = pack_rows(m.codes, 22, 96, bits, false);
        words = rows.size() / 22;
        const Bytes p = to_bytes(rows);
        packed.insert(packed.end(), p.begin(), p.end());
        for (float& s : m.scales) s = static_cast<float>(1 + random() % 100);
        const Bytes s = to_bytes(m.scales);
        scale.insert(scale.end(), s.begin(), s.end());
        for (int& z : m.zero_points)
          z = static_cast<int>(random() % (1u << bits)) - (1 << (bits - 1));
        std::vector<std::vector<uint32_t>> columns;
        for (uint64_t g = 0; g < 3; ++g) {
          std::vector<int> column;
          for (uint64_t r = 0; r < 22; ++r) column.push_back(m.zero_points[r * 3 + g]);
          columns.push_back(pack_words(column, bits, false));
        }
        for (size_t i = 0; i < columns[0].size(); ++i)
          for (const auto& column : columns) {
            const Bytes w = to_bytes(std::vector<uint32_t>{column[i]});
            zero.insert(zero.end(), w.begin(), w.end());
          }
      }
      file.add("m.weight_packed", DType::kI32, {3, 22, words}, packed);
      file.add("m.weight_scale", DType::kF32, {3, 22, 3}, scale);
      file.add("m.weight_zero_point", DType::kI32, {3, dense_words(22, bits), 3}, zero);
      file.put("m.weight_shape", DType::kI64, {3}, std::vector<int64_t>{3, 22, 96});
      const TensorStore& store = file.open();
      for (int64_t e = 0; e < 3; ++e)
        for (uint64_t half = 0; half < 2; ++half) {
          ModuleTensors t = collect(store, "m");
          for (const Role role : {Role::kWeightPacked, Role::kWeightScale, Role::kWeightZeroPoint,
                                  Role::kWeightShape}) {
            t[role].index = e;
            t[role].row_begin = interleaved ? half : 11 * half;
            t[role].row_count = 11;
            t[role].row_step = interleaved ? 2 : 1;
          }
          const auto loaded = run_reader(store, t, experts[0].scheme, "0.19.0", 11, 96);
          for (size_t r = 0; r < 11; ++r)
            for (size_t c = 0; c < 96; ++c)
              ASSERT_EQ(weight_at(loaded->view, r, c),
                        experts[static_cast<size_t>(e)].want(
                            interleaved ? 2 * r + half : 11 * half + r, c))
                  << "bits " << bits << " expert " << e << " half " << half << " at " << r << ","
                  << c;
        }
    }
}

struct Wrong {
  const char* what;  // part of the message
  void (*spoil)(Module&);
};

TEST(FormatsPack, RefusesByName) {
  const Wrong cases[] = {
      {"weight_packed is I64[11,12]; expected dtype I32",
       [](Module& m) {
         m.file.put("m.weight_packed", DType::kI64, {11, 12}, std::vector<int64_t>(132, 0));
       }},
      {"weight_packed is I32[11,11]; expected 12 words",
       [](Module& m) {
         m.file.put("m.weight_packed", DType::kI32, {11, 11}, std::vector<int32_t>(121, 0));
       }},
      {"weight_packed is I32[132]; expected 2 dimensions",
       [](Module& m) {
         m.file.put("m.weight_packed", DType::kI32, {132}, std::vector<int32_t>(132, 0));
       }},
      {"weight_packed is I32[0,12]; expected 2 dimensions, none of them 0",
       [](Module& m) {
         m.file.put("m.weight_packed", DType::kI32, {0, 12}, std::vector<int32_t>{});
       }},
      {"no tensor weight_packed", [](Module& m) { m.file.remove("m.weight_packed"); }},
      {"no tensor weight_scale", [](Module& m) { m.file.remove("m.weight_scale"); }},
      {"no tensor weight_zero_point", [](Module& m) { m.file.remove("m.weight_zero_point"); }},
      {"weight_scale is I32[11,3]; expected dtype BF16, F16 or F32",
       [](Module& m) {
         m.file.put("m.weight_scale", DType::kI32, {11, 3}, std::vector<int32_t>(33, 1));
       }},
      {"weight_scale is BF16[3,11]; expected [11,3]",
       [](Module& m) {
         m.file.floats("m.weight_scale", DType::kBf16, {3, 11}, m.scales);
       }},
      {"weight_scale is BF16[11,2]; expected [11,3]",
       [](Module& m) {
         m.file.floats("m.weight_scale", DType::kBf16, {11, 2}, std::vector<float>(22, 1));
       }},
      {"weight_scale[2,1] is nan",
       [](Module& m) {
         m.scales[7] = NAN;
         m.file.floats("m.weight_scale", DType::kBf16, {11, 3}, m.scales);
       }},
      {"weight_scale[2,1] is inf",
       [](Module& m) {
         m.scales[7] = INFINITY;
         m.file.floats("m.weight_scale", DType::kF16, {11, 3}, m.scales);
       }},
      {"weight_scale[2,1] is -0.5",
       [](Module& m) {
         m.scales[7] = -0.5f;
         m.file.floats("m.weight_scale", DType::kF32, {11, 3}, m.scales);
       }},
      {"weight_scale is 0 for row 2, group 1",
       [](Module& m) {
         m.scales[7] = 0.0f;
         m.file.floats("m.weight_scale", DType::kF32, {11, 3}, m.scales);
       }},
      {"weight_shape holds (12, 96)",
       [](Module& m) {
         m.file.put("m.weight_shape", DType::kI64, {2}, std::vector<int64_t>{12, 96});
       }},
      {"weight_packed is I32[11,12]; expected 11 words",
       [](Module& m) {
         m.file.put("m.weight_shape", DType::kI64, {2}, std::vector<int64_t>{11, 88});
       }},
      {"weight_packed is I32[11,12]; expected more words",
       [](Module& m) {
         m.file.put("m.weight_shape", DType::kI64, {2}, std::vector<int64_t>{11, INT64_MAX});
       }},
      {"weight_shape holds (11, -96)",
       [](Module& m) {
         m.file.put("m.weight_shape", DType::kI64, {2}, std::vector<int64_t>{11, -96});
       }},
      {"weight_shape is I64[3]; expected [2]",
       [](Module& m) {
         m.file.put("m.weight_shape", DType::kI64, {3}, std::vector<int64_t>{11, 96, 1});
       }},
      {"weight_shape is F32[2]; expected dtype",
       [](Module& m) {
         m.file.put("m.weight_shape", DType::kF32, {2}, std::vector<float>{11, 96});
       }},
      {"weight_zero_point is I32[3,3]; expected 2 words for 11 4-bit zero points",
       [](Module& m) {
         m.file.put("m.weight_zero_point", DType::kI32, {3, 3}, std::vector<int32_t>(9, 0));
       }},
      {"weight_zero_point is I32[2,2]; expected [2, 3]",
       [](Module& m) {
         m.file.put("m.weight_zero_point", DType::kI32, {2, 2}, std::vector<int32_t>(4, 0));
       }},
      {"weight_zero_point is I8[11,2]; expected [11,3]",
       [](Module& m) {
         m.file.put("m.weight_zero_point", DType::kI8, {11, 2}, std::vector<int8_t>(22, 0));
       }},
      {"weight_zero_point[1,0] is 8; expected a 4-bit zero point in [-8, 7]",
       [](Module& m) {
         std::vector<int8_t> z(33, 7);
         z[3] = 8;
         m.file.put("m.weight_zero_point", DType::kI8, {11, 3}, z);
       }},
      {"m.weight_global_scale belongs to m",
       [](Module& m) { m.file.floats("m.weight_global_scale", DType::kF32, {1}, {1}); }},
      {"m.weight belongs to m",
       [](Module& m) { m.file.floats("m.weight", DType::kF32, {1}, {1}); }},
      {"m.input_scale is stored, but m declares no input quantization",
       [](Module& m) { m.file.floats("m.input_scale", DType::kF32, {1}, {1}); }},
      {"group size 40, but K is 96", [](Module& m) { m.scheme.weights->group_size = 40; }},
      {"integer weights of 1 to 8 bits", [](Module& m) { m.scheme.weights->bits = 9; }},
      {"bias is BF16[12]; expected a bias of [11]",
       [](Module& m) { m.file.floats("m.bias", DType::kBf16, {12}, std::vector<float>(12, 0)); }},
  };
  for (const Wrong& wrong : cases) {
    Module m;
    Options o;
    o.symmetric = false;
    fill(m, 4, 96, 32, o);
    wrong.spoil(m);
    const TensorStore& store = m.file.open();
    EXPECT_NE(reader_error(store, collect(store, "m"), m.scheme).find(wrong.what),
              std::string::npos)
        << wrong.what << "\n"
        << reader_error(store, collect(store, "m"), m.scheme);
  }
}

TEST(FormatsPack, DimensionsOfTheArchitecture) {
  Module m;
  fill(m, 4, 96, 32, {});
  const TensorStore& store = m.file.open();
  EXPECT_NE(reader_error(store, collect(store, "m"), m.scheme, "", 12, 96)
                .find("a matrix of 11 x 96; expected 12 x 96"),
            std::string::npos);
  EXPECT_NE(reader_error(store, collect(store, "m"), m.scheme, "", 11, 128)
                .find("weight_shape holds (11, 96); expected 128 inputs"),
            std::string::npos);
}

TEST(FormatsPack, ZeroScaleOverZeroCodes) {
  Module m;
  fill(m, 4, 96, 32, {});
  m.scales[7] = 0.0f;
  for (size_t c = 32; c < 64; ++c) m.codes[2 * 96 + c] = 0;
  m.file.floats("m.weight_scale", DType::kBf16, {11, 3}, m.scales);
  m.file.put("m.weight_packed", DType::kI32, {11, 12}, pack_rows(m.codes, 11, 96, 4, false));
  expect_decodes(m);
}

}  // namespace
}  // namespace moebius::test::formats_pack_test
