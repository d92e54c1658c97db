// SPDX-License-Identifier: Apache-2.0
// Helpers of the format tests.
#include "unit/checkpoint/formats_util.h"

#include "base/error.h"
#include "base/numeric.h"
#include "quant/quant_access.h"

namespace moebius::test {

FileMaker& FileMaker::add(const std::string& name, DType dtype, std::vector<uint64_t> shape,
                          Bytes bytes) {
  tensors_[name] = {dtype, std::move(shape), std::move(bytes)};
  return *this;
}

FileMaker& FileMaker::floats(const std::string& name, DType dtype, std::vector<uint64_t> shape,
                             const std::vector<float>& values) {
  if (dtype == DType::kF32) return put(name, dtype, std::move(shape), values);
  std::vector<uint16_t> half;
  for (const float v : values)
    half.push_back(dtype == DType::kBf16 ? f32_to_bf16(v) : f32_to_f16(v));
  return put(name, dtype, std::move(shape), half);
}

FileMaker& FileMaker::remove(const std::string& name) {
  EXPECT_EQ(tensors_.erase(name), 1u) << name;
  return *this;
}

const TensorStore& FileMaker::open() {
  std::vector<TensorData> data;
  for (const auto& [name, item] : tensors_)
    data.push_back({name, item.dtype, item.shape, item.bytes});
  const std::string path = dir_ / ("file" + std::to_string(written_++) + ".safetensors");
  write_safetensors(path, data);
  store_ = std::make_unique<TensorStore>(TensorStore::open_file(path));
  return *store_;
}

ModuleTensors collect(const TensorStore& store, const std::string& module) {
  ModuleTensors out;
  out.name = module;
  for (size_t i = 0; i < static_cast<size_t>(Role::kCount); ++i) {
    const Role role = static_cast<Role>(i);
    out[role].info = store.find(module + "." + std::string(suffix_of(role)));
  }
  return out;
}

std::unique_ptr<Loaded> run_reader(const TensorStore& store, const ModuleTensors& tensors,
                                   const Scheme& scheme, const std::string& version, uint64_t N,
                                   uint64_t K) {
  const FormatReader& reader = reader_for(scheme.format);
  auto out = std::make_unique<Loaded>();
  out->plan = reader.plan(tensors, scheme, store, N, K, version);
  out->view = reader.load(out->plan, store, out->buffer);
  return out;
}

std::string reader_error(const TensorStore& store, const ModuleTensors& tensors,
                         const Scheme& scheme, const std::string& version, uint64_t N, uint64_t K) {
  try {
    run_reader(store, tensors, scheme, version, N, K);
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::vector<float> decode(const QuantMatrix& w) {
  std::vector<float> out;
  out.reserve(w.N * w.K);
  for (size_t r = 0; r < w.N; ++r)
    for (size_t c = 0; c < w.K; ++c) out.push_back(weight_at(w, r, c));
  return out;
}

std::vector<uint32_t> pack_words(const std::vector<int>& values, unsigned bits, bool padded) {
  std::vector<uint32_t> words;
  const size_t per_word = 32 / bits;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto u = static_cast<unsigned>(values[i] + (1 << (bits - 1)));
    for (unsigned b = 0; b < bits; ++b) {
      const size_t at = padded ? i / per_word * 32 + i % per_word * bits + b : i * bits + b;
      if (words.size() <= at / 32) words.resize(at / 32 + 1, 0);
      if ((u >> b) & 1u) words[at / 32] |= 1u << (at % 32);
    }
  }
  return words;
}

QuantArgs int_args(int bits, Strategy strategy, int64_t group, bool symmetric) {
  QuantArgs a;
  a.bits = bits;
  a.strategy = strategy;
  a.group_size = group;
  a.symmetric = symmetric;
  return a;
}

QuantArgs float_args(int bits, Strategy strategy, int64_t group) {
  QuantArgs a = int_args(bits, strategy, group);
  a.kind = NumberKind::kFloat;
  return a;
}

Scheme scheme_of(Format format, QuantArgs weights) {
  Scheme s;
  s.format = format;
  s.weights = std::move(weights);
  return s;
}

}  // namespace moebius::test
