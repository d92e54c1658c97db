// SPDX-License-Identifier: Apache-2.0
#include "nn/indexer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/packed_matrix.h"
#include "kernels/row_functions.h"

namespace moebius {

Indexer::Indexer(const IndexerSpec& spec, XType type, KvType storage, const Cpu& cpu,
                 const Policy& policy)
    : spec_(spec) {
  if (spec.heads == 0 || spec.head_dim == 0 || spec.top_k == 0)
    fail("an indexer with {} heads of {} that selects {} keys; expected positive numbers",
         spec.heads, spec.head_dim, spec.top_k);
  if (spec.by_head && (spec.block == 0 || spec.top_k % spec.block != 0))
    fail("an indexer that selects {} keys in blocks of {}; expected a multiple", spec.top_k,
         spec.block);
  if (spec.pooled && (spec.by_head || spec.ratio == 0))
    fail("an indexer of pooled keys; expected keys that stand for several tokens, for all heads");
  if (kKeyBlock % spec.tokens() != 0 || (spec.by_head && spec.ratio != 0))
    fail("an indexer whose keys stand for {} tokens; expected a divisor of {}", spec.ratio,
         kKeyBlock);
  const auto choose = [&](const Problem& p) {
    return choose_kernel(p, cpu, request_for(p, policy)).chosen;
  };
  keys_ = KvLayout(1, spec.head_dim, 0, {storage}, type, choose, spec.block_keys());
}

// Computes the scores of all keys that row t may see, in whole blocks.
void Indexer::score_blocks(const IndexRows& rows, size_t t, size_t positions,
                           IndexScratch& s) const {
  const KvMatrix& keys = keys_.keys();
  const Kernel& kernel = *keys.kernel;
  const size_t H = spec_.heads, D = spec_.head_dim, each = spec_.block_keys(),
               blocks = (positions + each - 1) / each;
  ScratchLayout layout;
  const size_t at_rows = layout.add(H * kernel.row_bytes(keys.problem)),
               at_panel = layout.add(kernel.row_panel_bytes(keys.problem, H)),
               at_scratch = layout.add(kernel.scratch_bytes(keys.problem, H)),
               at_products = layout.add_array<float>(H * each);
  uint8_t* base = s.memory.reserve(layout.bytes());
  auto* products = reinterpret_cast<float*>(base + at_products);
  s.scores.assign(spec_.selections() * blocks * each, 0.0f);
  PackedMatrix w;
  w.problem = &keys.problem;
  const ActParams none;
  kernel.prepare_rows({&keys.problem, &none, rows.q + t * H * D, D, H, base + at_rows});
  kernel.make_row_panel({&keys.problem, &w, base + at_rows, nullptr, H, base + at_panel});
  const float scale = 1.0f / std::sqrt(static_cast<float>(D)),
              share = 1.0f / std::sqrt(static_cast<float>(H));
  for (size_t b = 0; b < blocks; ++b) {
    const uint8_t* block = rows.blocks[b] + rows.offset;
    w.data = keys_.keys_of(block, 0);
    kernel.gemm({&w, base + at_panel, H, 0, each, products, each, base + at_scratch});
    const float* key_scales = keys_.key_scales(block, 0);
    float* to = s.scores.data() + b * each;
    for (size_t h = 0; h < H; ++h) {
      float* p = products + h * each;
      if (spec_.by_head) {
        float* own = s.scores.data() + (h * blocks + b) * each;
        for (size_t i = 0; i < each; ++i)
          own[i] = key_scales != nullptr ? p[i] * key_scales[i] : p[i];
        continue;
      }
      for (size_t i = 0; i < each; ++i)
        p[i] = std::max(p[i] * (key_scales != nullptr ? key_scales[i] * scale : scale), 0.0f);
      const float weight =
          spec_.weighted ? rows.weights[t * rows.weights_stride + h] * share : 1.0f;
      row_functions().add_scaled(to, weight, p, each);
    }
  }
}

// Sets the bits of the `count` greatest of scores[positions].
void Indexer::choose(size_t positions, size_t count, uint64_t* bits, IndexScratch& s) const {
  const auto set = [&](size_t i) { bits[i / 64] |= uint64_t{1} << (i % 64); };
  for (size_t i = 0; i < positions; ++i)
    if (std::isnan(s.scores[i])) s.scores[i] = -std::numeric_limits<float>::infinity();
  s.ordered.assign(s.scores.begin(), s.scores.begin() + static_cast<std::ptrdiff_t>(positions));
  const auto last = s.ordered.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(s.ordered.begin(), last, s.ordered.end(), std::greater<>());
  const float least = *last;
  size_t left = count;
  for (size_t i = 0; i < positions; ++i)
    if (s.scores[i] > least) {
      set(i);
      --left;
    }
  for (size_t i = 0; i < positions && left > 0; ++i)
    if (s.scores[i] == least) {
      set(i);
      --left;
    }
}

// Selects the tokens of the keys that score best, and the tokens after the last whole key.
void Indexer::select_pooled(const IndexRows& rows, size_t t, IndexScratch& s) const {
  const size_t positions = rows.position + t + 1, m = spec_.ratio, keys = positions / m;
  uint64_t* bits = rows.selected + t * rows.words;
  std::fill_n(bits, rows.words, 0);
  const auto see = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) bits[i / 64] |= uint64_t{1} << (i % 64);
  };
  if (keys <= spec_.top_k) return see(0, positions);
  score_blocks(rows, t, keys, s);
  s.chosen.assign(keys / 64 + 1, 0);
  choose(keys, spec_.top_k, s.chosen.data(), s);
  for (size_t k = 0; k < keys; ++k)
    if ((s.chosen[k / 64] >> (k % 64) & 1) != 0) see(k * m, (k + 1) * m);
  see(keys * m, positions);
}

void Indexer::select(const IndexRows& rows, size_t t, IndexScratch& s) const {
  if (spec_.pooled) return select_pooled(rows, t, s);
  const size_t positions = (rows.position + t + 1) / spec_.tokens(), n = spec_.selections();
  uint64_t* bits = rows.selected + t * n * rows.words;
  std::fill_n(bits, n * rows.words, 0);
  if (positions <= spec_.top_k) {
    for (size_t h = 0; h < n; ++h)
      for (size_t i = 0; i < positions; ++i)
        bits[h * rows.words + i / 64] |= uint64_t{1} << (i % 64);
    return;
  }
  score_blocks(rows, t, positions, s);
  std::fill_n(s.scores.begin(), spec_.first, -std::numeric_limits<float>::infinity());
  if (!spec_.by_head) return choose(positions, spec_.top_k, bits, s);
  for (size_t h = 0; h < n; ++h) select_blocks(rows, t, h, s);
}

// Scores this head's blocks and selects the best; selections of other heads stay.
void Indexer::select_blocks(const IndexRows& rows, size_t t, size_t head, IndexScratch& s) const {
  const size_t positions = rows.position + t + 1, own = (positions - 1) / spec_.block,
               stride = (positions + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  const float* scores = s.scores.data() + head * stride;
  s.blocks.assign(own + 1, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < positions; ++i)
    if (scores[i] > s.blocks[i / spec_.block]) s.blocks[i / spec_.block] = scores[i];
  for (size_t i = 0; i < std::min(spec_.local, own + 1); ++i)
    s.blocks[own - i] = std::numeric_limits<float>::infinity();
  s.chosen.assign(own / 64 + 1, 0);
  s.scores.swap(s.blocks);
  choose(own + 1, spec_.top_k / spec_.block, s.chosen.data(), s);
  s.scores.swap(s.blocks);
  uint64_t* bits = rows.selected + (t * spec_.heads + head) * rows.words;
  for (size_t i = 0; i < positions; ++i) {
    const size_t b = i / spec_.block;
    if ((s.chosen[b / 64] >> (b % 64) & 1) != 0) bits[i / 64] |= uint64_t{1} << (i % 64);
  }
}

}  // namespace moebius
