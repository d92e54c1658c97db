// SPDX-License-Identifier: Apache-2.0
// Format readers on modules that are nearly right: the input bytes choose a format, a scheme, sizes
// and storage form, build a module that fits, then spoil a few things (dtype, dimensions, presence,
// references, content, arguments). A reader must throw Error or give a view whose every element can
// be read; sanitizers judge the rest. Methods that know modules by their tensors decide over the same
// modules.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/methods/method.h"
#include "fuzz/target.h"
#include "quant/quant_access.h"
#include "quant/slice.h"

namespace moebius::fuzz_formats {
namespace {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  unsigned byte() { return at_ < size_ ? data_[at_++] : 0; }
  uint64_t below(uint64_t n) { return byte() % n; }
  bool flag() { return (byte() & 1u) != 0; }
  bool empty() const { return at_ >= size_; }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

struct Item {
  DType dtype;
  std::vector<uint64_t> shape;
  std::vector<uint8_t> bytes;
};
struct Module {
  Scheme scheme;
  std::map<Role, Item> items;
  ModuleTensors refs;
  uint64_t N = 0, K = 0;
};

uint64_t bytes_of(const Item& item) {
  uint64_t n = bits_of(item.dtype);
  for (const uint64_t d : item.shape) n *= d;
  return n / 8;
}

void put(Module& m, Role role, DType dtype, std::vector<uint64_t> shape, uint8_t fill) {
  Item item{dtype, std::move(shape), {}};
  item.bytes.assign(bytes_of(item), fill);
  m.items[role] = std::move(item);
}

void put_scales(Module& m, Input& in, uint64_t rows) {
  QuantArgs& a = *m.scheme.weights;
  const DType types[] = {DType::kBf16, DType::kF16, DType::kF32};
  DType type = types[in.below(3)];
  if (m.scheme.format == Format::kNvfp4Pack || m.scheme.format == Format::kModeloptNvfp4)
    type = DType::kF8E4M3;
  if (m.scheme.format == Format::kNativeFp8 && in.flag())
    type = in.flag() ? DType::kU8 : DType::kF8E8M0;
  if (m.scheme.format == Format::kMxfp4Pack || m.scheme.format == Format::kMxfp8) type = DType::kU8;
  std::vector<uint64_t> shape = {rows, 1};
  if (a.strategy == Strategy::kTensor) shape = {1};
  if (a.group_size > 0) shape = {rows, m.K / static_cast<uint64_t>(a.group_size)};
  if (a.strategy == Strategy::kBlock)
    shape = {(rows - 1) / static_cast<uint64_t>(a.block_n) + 1,
             (m.K - 1) / static_cast<uint64_t>(a.block_k) + 1};
  put(m, Role::kWeightScale, type, shape, 0x3c);  // a positive number in every type
  if (a.symmetric) return;
  if (m.scheme.format == Format::kPackQuantized && in.flag())
    put(m, Role::kWeightZeroPoint, DType::kI32,
        {(rows * static_cast<uint64_t>(a.bits) + 31) / 32, shape.back()}, 0x55);
  else
    put(m, Role::kWeightZeroPoint, DType::kI8, shape, 0);
}

void choose_arguments(Module& m, Input& in) {
  QuantArgs a;
  const Format f = m.scheme.format;
  a.kind = f == Format::kPackQuantized || (f != Format::kFloatQuantized && f < Format::kNvfp4Pack)
               ? NumberKind::kInt
               : NumberKind::kFloat;
  a.bits = a.kind == NumberKind::kInt ? static_cast<int>(1 + in.below(8)) : 8;
  const bool nvfp4 = f == Format::kNvfp4Pack || f == Format::kModeloptNvfp4;
  if (nvfp4 || f == Format::kMxfp4Pack) a.bits = 4;
  const Strategy strategies[] = {Strategy::kTensor, Strategy::kChannel, Strategy::kGroup,
                                 Strategy::kBlock};
  a.strategy = strategies[in.below(4)];
  if (f >= Format::kNvfp4Pack && f != Format::kNativeFp8)
    a.strategy = nvfp4 ? Strategy::kTensorGroup : Strategy::kGroup;
  if (a.strategy == Strategy::kGroup) a.group_size = 32;
  if (a.strategy == Strategy::kTensorGroup) a.group_size = 16;
  if (a.strategy == Strategy::kBlock) {
    a.block_n = static_cast<int64_t>(1 + in.below(9));
    a.block_k = static_cast<int64_t>(1 + in.below(40));
  }
  a.symmetric = a.kind == NumberKind::kFloat || in.flag();
  if (in.flag() && a.group_size > 0) a.act_order = ActOrder::kGroup;
  m.scheme.weights = a;
  if (in.flag()) m.scheme.input = a;
  if (in.flag()) m.scheme.output = a;
}

// GPTQ and AWQ: words of codes, tables with outputs as columns.
void build_turned(Module& m, Input& in) {
  const Format f = m.scheme.format;
  const bool gemm = f == Format::kAwq || f == Format::kQuarkInt4;
  const bool awq = gemm || f == Format::kAwqGemv;
  QuantArgs a;
  a.bits = awq ? 4 : static_cast<int>(2 + in.below(7));
  a.symmetric = in.flag();
  a.strategy = in.flag() ? Strategy::kGroup : Strategy::kChannel;
  if (a.strategy == Strategy::kGroup) a.group_size = static_cast<int64_t>(8 * (1 + in.below(6)));
  if (!awq && a.group_size > 0 && in.flag()) a.act_order = ActOrder::kGroup;
  m.N = awq ? 8 * (1 + in.below(3)) : m.N;
  m.scheme.weights = a;
  const auto bits = static_cast<uint64_t>(a.bits);
  const uint64_t group = a.group_size > 0 ? static_cast<uint64_t>(a.group_size) : m.K;
  const uint64_t G = (m.K + group - 1) / group, padded = (G + 7) / 8;
  const uint64_t words =
      f == Format::kGptqPlanar && 32 % bits != 0 ? (m.N + 31) / 32 * bits : (m.N * bits + 31) / 32;
  using Shape = std::vector<uint64_t>;
  const Shape codes = gemm                    ? Shape{m.K, m.N / 8}
                      : f == Format::kAwqGemv ? Shape{m.N, m.K / 8}
                                              : Shape{m.K * bits / 32, m.N};
  put(m, Role::kWeightPacked, DType::kI32, codes, 0x5a);
  put(m, Role::kWeightScale, DType::kF16,
      f == Format::kAwqGemv ? Shape{m.N, 8 * padded} : Shape{G, m.N}, 0x3c);
  put(m, Role::kWeightZeroPoint, DType::kI32,
      f == Format::kAwqGemv ? Shape{m.N, padded} : Shape{G, words}, 0x88);
  if (a.act_order != ActOrder::kGroup) return;
  put(m, Role::kWeightGIdx, DType::kI32, {m.K}, 0);
  for (uint64_t c = 0; c < m.K; ++c)
    m.items[Role::kWeightGIdx].bytes[4 * c] = static_cast<uint8_t>((m.K - 1 - c) / group);
}

// MLX: rows of words; the scheme says which numbers.
void build_mlx(Module& m, Input& in) {
  QuantArgs a;
  a.strategy = Strategy::kGroup;
  a.group_size = 32;
  const uint64_t mode = in.below(4);
  if (mode == 0) {
    const int widths[] = {2, 3, 4, 5, 6, 8};
    a.bits = widths[in.below(6)];
    a.offsets = true;
    a.symmetric = false;
  } else {
    a.kind = NumberKind::kFloat;
    a.bits = mode == 1 ? 8 : 4;
    a.scale_dtype = "uint8";
    if (mode == 3) a.strategy = Strategy::kTensorGroup, a.group_size = 16;
  }
  m.scheme.weights = a;
  const uint64_t groups = m.K / static_cast<uint64_t>(a.group_size);
  put(m, Role::kWeight, DType::kU32, {m.N, m.K * static_cast<uint64_t>(a.bits) / 32}, 0x5a);
  const DType types[] = {DType::kBf16, DType::kF16, DType::kF32};
  const DType type = a.offsets ? types[in.below(3)] : DType::kU8;
  put(m, Role::kWeightScale, type, {m.N, groups}, 0x3c);
  if (a.offsets) put(m, Role::kWeightOffset, type, {m.N, groups}, 0x3c);
  if (mode == 3 && in.flag()) put(m, Role::kWeightGlobalScale, DType::kF32, {1}, 0x3c);
}

Module build(Input& in) {
  Module m;
  const unsigned choice = in.byte();
  constexpr Format kForeign[] = {Format::kNativeFp8, Format::kModeloptNvfp4};
  constexpr Format kWords[] = {Format::kGptq, Format::kGptqV2,  Format::kGptqPlanar,
                               Format::kAwq,  Format::kAwqGemv, Format::kQuarkInt4,
                               Format::kMlx};
  m.scheme.format = choice < 0xF0   ? static_cast<Format>(choice % 9)
                    : choice < 0xF8 ? kForeign[choice % 2]
                                    : kWords[choice % std::size(kWords)];
  const uint64_t rows = 1 + in.below(20);
  m.N = rows;
  m.K = 32 * (1 + in.below(4));
  const Format f = m.scheme.format;
  if (f == Format::kDense) {
    put(m, Role::kWeight, DType::kBf16, {rows, m.K}, 0x3c);
  } else if (is_turned(f)) {
    build_turned(m, in);
  } else if (f == Format::kMlx) {
    build_mlx(m, in);
  } else if (f == Format::kGptOssMxfp4) {
    put(m, Role::kWeightPacked, DType::kU8, {rows, m.K / 32, 16}, 0x3c);
    put(m, Role::kWeightScale, DType::kU8, {rows, m.K / 32}, 0x3c);
  } else {
    choose_arguments(m, in);
    const auto bits = static_cast<uint64_t>(m.scheme.weights->bits);
    if (f == Format::kPackQuantized) {
      put(m, Role::kWeightPacked, DType::kI32, {rows, (m.K * bits + 31) / 32}, 0x3c);
      put(m, Role::kWeightShape, DType::kI64, {2}, 0);
      m.items[Role::kWeightShape].bytes[0] = static_cast<uint8_t>(rows);
      m.items[Role::kWeightShape].bytes[8] = static_cast<uint8_t>(m.K);
    } else if (bits == 4 && m.scheme.weights->kind == NumberKind::kFloat) {
      put(m, f == Format::kModeloptNvfp4 ? Role::kWeight : Role::kWeightPacked, DType::kU8,
          {rows, m.K / 2}, 0x3c);
    } else {
      const bool is_int = m.scheme.weights->kind == NumberKind::kInt;
      put(m, Role::kWeight, is_int ? DType::kI8 : DType::kF8E4M3, {rows, m.K}, 0);
    }
    put_scales(m, in, rows);
    if (f == Format::kNvfp4Pack || f == Format::kModeloptNvfp4)
      put(m, Role::kWeightGlobalScale, DType::kF32, {1}, 0x3c);
    if (m.scheme.weights->act_order == ActOrder::kGroup) {
      put(m, Role::kWeightGIdx, DType::kI32, {m.K}, 0);
      for (uint64_t c = 0; c < m.K; ++c)
        m.items[Role::kWeightGIdx].bytes[4 * c] =
            static_cast<uint8_t>(c % (m.K / static_cast<uint64_t>(m.scheme.weights->group_size)));
    }
    if (m.scheme.input) put(m, Role::kInputScale, DType::kF32, {1}, 0x3c);
    if (m.scheme.output) put(m, Role::kOutputScale, DType::kF32, {1}, 0x3c);
  }
  if (in.flag()) put(m, Role::kBias, DType::kBf16, {m.N}, 0x3c);
  return m;
}

void fuse(Module& m, Input& in) {  // a leading expert dimension, or halves
  const uint64_t experts = in.below(4);
  const uint64_t form = in.below(4);
  for (auto& [role, item] : m.items) {
    TensorRef& ref = m.refs[role];
    if (experts > 0) {
      item.shape.insert(item.shape.begin(), experts);
      const std::vector<uint8_t> one = item.bytes;
      for (uint64_t e = 1; e < experts; ++e)
        item.bytes.insert(item.bytes.end(), one.begin(), one.end());
      ref.index = static_cast<int64_t>(experts - 1);
    }
    if (form == 1) {
      ref.row_step = 2;
      ref.row_begin = m.N > 1 ? 1 : 0;
    }
    if (form == 2) ref.row_begin = ref.row_count = m.N / 2;
    // A table of both halves, whose weights are stored apart.
    if (form == 3 && role == Role::kWeightScale) ref.row_count = m.N / 2 + in.below(2);
  }
}

void spoil(Module& m, Input& in) {
  if (m.items.empty()) return;
  auto it = m.items.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(in.below(m.items.size())));
  auto& [role, item] = *it;
  TensorRef& ref = m.refs[role];
  switch (in.below(12)) {
    case 0:
      item.dtype = static_cast<DType>(in.below(22));
      break;
    case 1:
      if (!item.shape.empty()) {
        uint64_t& d = item.shape[in.below(item.shape.size())];
        d = d + in.below(4) - std::min<uint64_t>(d, 1);
      }
      break;
    case 2:
      item.shape.push_back(in.below(3));
      break;
    case 3:
      if (!item.shape.empty()) item.shape.pop_back();
      break;
    case 4:
      put(m, static_cast<Role>(in.below(14)), static_cast<DType>(in.below(19)), {in.below(9)}, 1);
      break;
    case 5:
      m.items.erase(it);
      break;
    case 6:
      ref.index = static_cast<int64_t>(in.below(5)) - 1;
      break;
    case 7:
      ref.row_begin = in.below(24);
      ref.row_count = in.below(24);
      break;
    case 8:
      ref.transposed = !ref.transposed;
      break;
    case 9:
      for (int i = 0; i < 8; ++i)
        if (!item.bytes.empty())
          item.bytes[(in.byte() * 256u + in.byte()) % item.bytes.size()] =
              static_cast<uint8_t>(in.byte());
      break;
    case 10:
      if (m.scheme.weights) {
        m.scheme.weights->bits = static_cast<int>(in.below(18)) - 1;
        m.scheme.weights->strategy = static_cast<Strategy>(in.below(7));
      }
      break;
    default:
      if (m.scheme.weights) {
        m.scheme.weights->group_size = static_cast<int64_t>(in.byte()) - 8;
        m.scheme.weights->block_n = static_cast<int64_t>(in.byte()) - 8;
      }
  }
}

// Writes the module as a safetensors file in memory and opens it.
TensorStore open_module(int fd, Module& m) {
  Json header = Json::object();
  std::string payload;
  for (auto& [role, item] : m.items) {
    item.bytes.resize(bytes_of(item));
    Json shape = Json::array(), range = Json::array();
    for (const uint64_t d : item.shape) shape.push(Json(d));
    range.push(Json(static_cast<uint64_t>(payload.size())));
    payload.append(item.bytes.begin(), item.bytes.end());
    range.push(Json(static_cast<uint64_t>(payload.size())));
    header.set(
        "m." + std::string(suffix_of(role)),
        Json::object(
            {{"dtype", Json(name_of(item.dtype))}, {"shape", shape}, {"data_offsets", range}}));
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  file += text + payload;
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, file.data(), file.size(), 0) != static_cast<ssize_t>(file.size()))
    std::abort();
  return TensorStore::open_file("/proc/self/fd/" + std::to_string(fd));
}

void use(const QuantMatrix& w, Input& in) {
  float sum = 0;
  for (size_t r = 0; r < w.N; ++r)
    for (size_t c = 0; c < w.K; ++c) sum += weight_at(w, r, c);
  SliceMemory memory;
  const size_t r0 = in.below(w.N), c0 = in.below(w.K);
  const QuantMatrix part = slice(w, r0, w.N, c0, w.K, memory);
  const size_t r = part.N - 1, c = part.K - 1;
  const float a = weight_at(part, r, c), b = weight_at(w, r0 + r, c0 + c);
  if (std::memcmp(&a, &b, sizeof a) != 0) std::abort();
  volatile float sink = sum;
  (void)sink;
}

// The method decides, and what it decides is read.
void decide(Module m, const TensorStore& store, Input& in) {
  static const char* const kSections[] = {
      R"({"quant_method": "fp8", "weight_block_size": [4, 16], "scale_fmt": "ue8m0"})",
      R"({"quant_method": "fp8", "activation_scheme": "static"})",
      R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})",
      R"({"quant_method": "modelopt", "quant_algo": "FP8"})",
      R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
          "quantized_layers": {"m": {"quant_algo": "FP8_PB_WO"}}})",
      R"({"quant_method": "modelopt", "quant_algo": "MXFP8"})",
      R"({"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": false, "desc_act": true})",
      R"({"quant_method": "gptq", "bits": 3, "group_size": -1, "dynamic": {"m": {"bits": 6}}})",
      R"({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true})",
      R"({"quant_method": "awq", "w_bit": 4, "q_group_size": -1, "version": "gemv"})",
      R"({"quant_method": "auto-round", "bits": 2, "extra_config": {"m": {"group_size": 8}}})",
      R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4",
          "qscheme": "per_group", "group_size": 16, "symmetric": false}}})",
      R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4",
          "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}}})",
      R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3",
          "qscheme": "per_block", "block_size": [4, 16]}}})",
      R"({"quant_method": "fbgemm_fp8"})",
      R"({"bits": 5, "group_size": 32})",
      R"({"bits": 4, "group_size": 16, "mode": "nvfp4"})",
  };
  std::vector<std::string> warnings;
  Json config = Json::object();
  config.set("quantization_config", parse_json(kSections[in.below(std::size(kSections))], "fuzz"));
  const QuantConfig quant = QuantConfig::parse(config, "fuzz", warnings);
  const SchemeDecision d = quant.rules()->decide({"m", "m", in.flag(), m.refs, store, in.flag()});
  if (d.scheme.is_dense() || d.rule.empty()) std::abort();
  const FormatReader& reader = reader_for(d.scheme.format);
  const MatrixPlan plan = reader.plan(m.refs, d.scheme, store, 0, 0, "");
  LoadBuffer buffer;
  use(reader.load(plan, store, buffer), in);
}

}  // namespace

FUZZ_TARGET(formats) {
  static const int fd = memfd_create("formats", 0);
  Input in(data, size);
  Module m = build(in);
  if (in.flag()) fuse(m, in);
  for (uint64_t n = in.below(4); n > 0 && !in.empty(); --n) spoil(m, in);
  try {
    const TensorStore store = open_module(fd, m);
    m.refs.name = "m";
    for (auto& [role, item] : m.items)
      m.refs[role].info = store.find("m." + std::string(suffix_of(role)));
    if (m.scheme.format >= Format::kNativeFp8 && in.flag()) return decide(m, store, in), 0;
    const FormatReader& reader = reader_for(m.scheme.format);
    const MatrixPlan plan =
        reader.plan(m.refs, m.scheme, store, 0, 0, in.flag() ? "0.17" : "0.13.0");
    LoadBuffer buffer;
    const QuantMatrix w = reader.load(plan, store, buffer);
    if (w.N != plan.N || w.K != plan.K || w.code != plan.code) std::abort();
    load_bias(plan, store);
    use(w, in);
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace moebius::fuzz_formats
