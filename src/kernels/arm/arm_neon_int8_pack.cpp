// SPDX-License-Identifier: Apache-2.0
// Packs weights for every kernel of the int8 family on Arm, with plain NEON and through one
// external function (layouts: arm_int8.h).
#include "kernels/arm/arm_int8.h"
#include "kernels/arm/arm_panel_pack.h"

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
namespace int8_family {

using namespace arm_packing;

// Sums of the codes of 8 outputs, behind scales and zero points.
struct CodeSums {
  static constexpr bool kWholeGroups = false;
  class Watch {
   public:
    template <size_t kBits>
    [[gnu::always_inline]] void add(size_t i, uint8x16_t v) {
      if constexpr (kBits == 4) {  // values + 8
        part_[i] = vreinterpretq_s16_u16(vpadalq_u8(vreinterpretq_u16_s16(part_[i]),
                                                    vsraq_n_u8(vandq_u8(v, vdupq_n_u8(15)), v, 4)));
        excess_ = 8 * 2 * kStepInputs;
      } else {
        part_[i] = vpadalq_s8(part_[i], vreinterpretq_s8_u8(v));
      }
    }
    [[gnu::always_inline]] void step() {
      constexpr int32_t kMost = 64;  // additions of at most 256 that fit 16 bits
      if (++steps_ == kMost) settle();
    }
    // Returns the sums of outputs 0 to 3 and 4 to 7, and begins anew.
    [[gnu::always_inline]] void take(int32x4_t (&sums)[2]) {
      settle();
      MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) {
        sums[i] = total_[i];
        total_[i] = vdupq_n_s32(0);
      }
    }

   private:
    [[gnu::always_inline]] void settle() {
      int32x4_t pair[4];
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
        pair[i] = vpaddq_s32(vpaddlq_s16(part_[2 * i]), vpaddlq_s16(part_[2 * i + 1]));
        part_[2 * i] = part_[2 * i + 1] = vdupq_n_s16(0);
      }
      MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) total_[i] =
          vsubq_s32(vaddq_s32(total_[i], vpaddq_s32(pair[2 * i], pair[2 * i + 1])),
                    vdupq_n_s32(excess_ * steps_));
      steps_ = 0;
    }
    int16x8_t part_[kNr] = {};
    int32x4_t total_[2] = {};
    int32_t steps_ = 0, excess_ = 0;  // excess_: by which a step makes every sum too large
  };
  template <class Packer>
  [[gnu::always_inline]] static void put(Packer& p, const Cursor& c, Watch& watch) {
    const PanelSizes& s = p.sizes();
    const QuantMatrix& w = *p.args().w;
    p.put_extras(c.group, c.out);
    int32x4_t sums[2];
    watch.take(sums);
    if (s.zeros != 0) {
      const size_t k = c.group * s.inputs, left = w.K - k;
      const auto count = static_cast<int32_t>(left < s.inputs ? left : s.inputs);
      const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(p.zeros(c.group)));
      sums[0] = vmlsq_n_s32(sums[0], vmovl_s16(vget_low_s16(wide)), count);
      sums[1] = vmlsq_n_s32(sums[1], vmovl_high_s16(wide), count);
    }
    uint8_t* const out = c.out + s.scales + s.zeros;
    store_in_order<2>(out, {vreinterpretq_u8_s32(sums[0]), vreinterpretq_u8_s32(sums[1])});
    const size_t n = p.first_output(), there = n + kNr <= w.N ? kNr : w.N - n;
    __builtin_memset(out + 4 * there, 0, 4 * (kNr - there));  // outputs past N have no sum
  }
};

// Offsets of 8 outputs as f32, behind scales.
struct Offsets {
  static constexpr bool kWholeGroups = false;
  using Watch = NothingElse::Watch;
  template <class Packer>
  [[gnu::always_inline]] static void put(Packer& p, const Cursor& c, Watch&) {
    p.put_extras(c.group, c.out);
    const QuantMatrix& w = *p.args().w;
    for (size_t i = 0; i < kNr; ++i) {
      const size_t n = p.first_output() + i, r = (n < w.N ? n : w.N - 1) + w.n_phase;
      const size_t at = r / w.block_n * w.scale_stride + c.group;
      float v;
      if (w.scale_type == ScaleType::kTwoLevel)
        v = two_level_at(w, w.offsets, w.super_offsets, at);
      else
        decode_scales(w.scale_type, w.offsets + at * scale_size(w.scale_type), 1, &v);
      __builtin_memcpy(c.out + p.sizes().scales + 4 * i, &v, 4);
    }
  }
};

}  // namespace int8_family
#endif

}  // namespace

// In other builds the kernels of the family have no bodies, and this is never called.
void pack_int8_family([[maybe_unused]] const PackArgs& args) {
#ifdef MOEBIUS_KERNEL_BODIES
  using namespace int8_family;
  const Shape s = shape_of(*args.problem);
  if (s.sum_bytes != 0) return pack_by_layout<kLayout, CodeSums>(args, s.sizes());
  if (s.offset_bias != 0) return pack_by_layout<kLayout, Offsets>(args, s.sizes());
  pack_by_layout<kLayout>(args, s.sizes());
#endif
}

}  // namespace moebius
