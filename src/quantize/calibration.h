// SPDX-License-Identifier: Apache-2.0
// What the modules of a model read when it runs on calibration text: rows are kept for some layers at
// a time, and become second moments of the inputs of a module, H = E[x x^T].
//
// An expert sees the rows that are routed to it. With n of them and K inputs its moments are mixed
// with those of all rows of the layer, H = a H_expert + (1 - a) H_layer, a = n / (n + K), because few
// rows say little. Experts without any row have the layer's; for their down projection rows of the
// layer are sent through them.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/tap.h"
#include "model/decoder.h"

namespace moebius {

// Rows as bf16, which is what layers pass on.
struct KeptRows {
  size_t cols = 0, slots = 0;
  std::vector<uint16_t> data;
  std::vector<int32_t> ids;  // [rows, slots]; slots 0: every row goes everywhere
  size_t rows() const { return cols == 0 ? 0 : data.size() / cols; }
};

struct Moments {
  size_t K = 0;
  size_t rows = 0;              // that the module itself saw
  std::vector<float> hessian;   // [K,K]; empty: not asked for
  std::vector<float> diagonal;  // [K]
  bool known() const { return !diagonal.empty(); }
};

class Calibration final : private ModuleTap {
 public:
  // Loads the model of `source`, which must outlive this. Throws Error where it does not run.
  Calibration(const Checkpoint& source, std::vector<std::vector<int32_t>> windows,
              ThreadPool& pool);
  ~Calibration() override;
  size_t vocab() const { return model_->vocab(); }
  size_t tokens() const;
  // Bytes that the rows of one layer take, about.
  uint64_t layer_bytes() const;

  // Runs the windows and keeps what modules of layers [begin, end) read; forgets others.
  void collect(int begin, int end);
  bool has(int layer) const { return layer >= begin_ && layer < end_; }
  // Of a module of these layers; not known: nothing was seen of it. Thread-safe.
  Moments moments(const Module& module, bool whole) const;

 private:
  struct Block;
  struct Place {
    std::shared_ptr<Block> block;
    int expert = -1;  // -1: all rows
    std::array<const Module*, 3> parts{};
    bool inner = false;  // reads what gate and up gave
  };
  void linear(std::span<const Module* const> modules, const TappedRows& x) override;
  void block(const MoeBlock& block, const TappedRows& x, std::span<const int32_t> ids,
             size_t slots) override;
  void finish_block(Block& block) const;
  std::vector<float> rows_of(const Place& place, size_t most, size_t* seen) const;
  std::vector<float> inner_rows(const Place& place, const std::vector<float>& rows) const;

  const Checkpoint& source_;
  std::vector<std::vector<int32_t>> windows_;
  ThreadPool& pool_;
  std::unique_ptr<DecoderModel> model_;
  int begin_ = 0, end_ = 0;
  std::map<std::string, std::shared_ptr<KeptRows>, std::less<>> linear_;
  std::map<std::string, std::shared_ptr<Block>, std::less<>> blocks_;
  std::map<std::string, Place, std::less<>> places_;  // of modules inside blocks
};

}  // namespace moebius
