// SPDX-License-Identifier: Apache-2.0
// The int8 family with SVE vectors of 256 bits: 4-bit codes without zero points, int8 rows that are
// symmetric and dynamic. Half as many instructions as with NEON for the same products
// (docs/kernels.md says what that is worth, and that it was only counted, not timed: the kernel
// runs on request). Packing, rows, panels and scratch are those of the family; only the tiles
// differ. Layouts: arm_int8.h; tiles: arm_sve_tiles.h.
#include "kernels/arm_int8.h"
#include "kernels/arm_int8_gemm.h"
#include "kernels/arm_int8_rows.h"
#include "kernels/arm_sve_tiles.h"

namespace moebius {
namespace {

using namespace int8_family;

#ifdef __aarch64__
struct Sve : NoTiles {
  static constexpr Engine kEngine = kSveEngine;
  template <int P, int kFix, bool kGrouped>
  static constexpr bool has_tile() {
    return true;
  }
  template <int kShift, int P>
  static void tile(const Tile& t, size_t group_k, float32x4_t (&f)[P][4]) {
    static_assert(kShift == 4);
    if (t.state_in != nullptr) {
      __builtin_memcpy(f, t.state_in, sizeof f);
    } else {
      __builtin_memset(f, 0, sizeof f);
    }
    sve_tiles::expanded<P>(t.a, t.w, t.extras, t.groups, t.steps, sve_tiles::is_small(group_k), f);
    if (t.state_out != nullptr) __builtin_memcpy(t.state_out, f, sizeof f);
  }
};

struct SveGemm : Gemm<Sve, kPlain, true> {
  using Gemm::Gemm;
  const bool small = sve_tiles::is_small(s.group_k);

  template <int P>
  void tile_of_codes(size_t pair, size_t n) const {
    const Tile t = packed_tile(pair, n);
    float32x4_t f[P][4];
    sve_tiles::from_codes<P>(t.a, t.w, t.groups, t.steps, small, s.bf16, f);
    store<P>(f, row_scales + 2 * pair, G, out(pair, n), a.ldy, rows_from(pair), valid(n));
  }
  // One or two rows, two panels at a time, half the block apart; a panel that is left over goes
  // with itself.
  template <bool kSingle>
  void one_pair() const {
    const size_t panels = (a.n1 - a.n0 + kNr - 1) / kNr, apart = panels / 2;
    for (size_t i = 0; i < panels - apart; ++i) {
      const size_t n = a.n0 + i * kNr, second = i < apart ? n + (panels - apart) * kNr : n;
      const Tile t = packed_tile(0, n);
      float32x4_t f[2][4];
      sve_tiles::two_panels<kSingle>(t.a, t.w, panel(second), t.groups, t.steps, small, s.bf16, f);
      put(f[0], n);
      if (second != n) put(f[1], second);
    }
  }
  void put(const float32x4_t (&blocks)[4], size_t n) const {
    const float32x4_t f[1][4] = {{blocks[0], blocks[1], blocks[2], blocks[3]}};
    store<1>(f, row_scales, G, out(0, n), a.ldy, a.M, valid(n));
  }
  void from_codes() const {
    if (a.M == 1) return one_pair<true>();
    if (a.M == 2) return one_pair<false>();
    for (size_t n = a.n0; n < a.n1; n += kNr) {
      const bool more = map.tiles > 1 && n + kNr < a.n1;
      Ahead ahead(panel(n + kNr), more ? s.stride() / 64 : 0, map.tiles);
      for (size_t t = 0; t < map.tiles; ++t) {
        ahead.fetch();
        switch (map.size(t)) {
          case 2:
            tile_of_codes<2>(map.first(t), n);
            break;
          case 3:
            tile_of_codes<3>(map.first(t), n);
            break;
          default:
            tile_of_codes<4>(map.first(t), n);
            break;
        }
      }
    }
  }
};

// More than one tile with groups: operands in scratch. Without groups a tile has time to make them.
void gemm_sve(const GemmArgs& args) {
  const SveGemm gemm(args);
  if (gemm.s.grouped() && gemm.map.tiles > 1) {
    gemm.many<Bytes<4>>();
  } else {
    gemm.from_codes();
  }
}
#endif

const char* supports_plain(const Problem& p) {
  if (const char* reason = supports_int4(p)) return reason;
  if (p.zero_points) return "the weights have zero points";
  if (shape_of(p).row_zeros) return "rows are static or may have a zero point";
  return nullptr;
}

constexpr Kernel kKernels[] = {
    kernel("arm_sve", "int4", kNeon | kSve | kSveI8mm | kSve256, supports_plain,
           MOEBIUS_BODIES(pack_int8_family, prepare_rows, make_panel_for<Sve>, gemm_sve),
           "its speed was never measured")};

}  // namespace

extern const KernelTable kArmSveKernels;
const KernelTable kArmSveKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
