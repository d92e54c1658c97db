// SPDX-License-Identifier: Apache-2.0
// For the tests of format readers: build a small safetensors file in memory terms, collect a
// module's tensors by suffix, run a reader, decode a view with its defining formula. Packing here
// is the slow, obvious kind: bit by bit.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/formats/format.h"
#include "unit/test_util.h"

namespace moebius::test {

using Bytes = std::vector<uint8_t>;

template <class T>
Bytes to_bytes(const std::vector<T>& values) {
  Bytes out(values.size() * sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

// A file under construction. open() writes it and reads it back through TensorStore.
class FileMaker {
 public:
  FileMaker& add(const std::string& name, DType dtype, std::vector<uint64_t> shape, Bytes bytes);
  template <class T>
  FileMaker& put(const std::string& name, DType dtype, std::vector<uint64_t> shape,
                 const std::vector<T>& values) {
    return add(name, dtype, std::move(shape), to_bytes(values));
  }
  FileMaker& floats(const std::string& name, DType dtype, std::vector<uint64_t> shape,
                    const std::vector<float>& values);  // rounded to F32, BF16 or F16
  FileMaker& remove(const std::string& name);
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  const TensorStore& open();

 private:
  struct Item {
    DType dtype;
    std::vector<uint64_t> shape;
    Bytes bytes;
  };
  std::map<std::string, Item> tensors_;
  TempDir dir_;
  int written_ = 0;
  std::unique_ptr<TensorStore> store_;
};

// All tensors `module.<suffix>` of the store.
ModuleTensors collect(const TensorStore& store, const std::string& module);

// A plan and what load() made of it, with the memory it views.
struct Loaded {
  MatrixPlan plan;
  QuantMatrix view;
  LoadBuffer buffer;
};
std::unique_ptr<Loaded> run_reader(const TensorStore& store, const ModuleTensors& tensors,
                                   const Scheme& scheme, const std::string& version = "0.19.0",
                                   uint64_t N = 0, uint64_t K = 0);
// The message of the Error that plan() or load() throws; fails the test when neither does.
std::string reader_error(const TensorStore& store, const ModuleTensors& tensors,
                         const Scheme& scheme, const std::string& version = "0.19.0",
                         uint64_t N = 0, uint64_t K = 0);

std::vector<float> decode(const QuantMatrix& w);  // [N, K]

// Bit stream of unsigned (value + 2^(bits-1)) codes in 32-bit words, set bit by bit.
std::vector<uint32_t> pack_words(const std::vector<int>& values, unsigned bits, bool padded);

QuantArgs int_args(int bits, Strategy strategy, int64_t group = 0, bool symmetric = true);
QuantArgs float_args(int bits, Strategy strategy, int64_t group = 0);
Scheme scheme_of(Format format, QuantArgs weights);

}  // namespace moebius::test
