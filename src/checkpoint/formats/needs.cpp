// SPDX-License-Identifier: Apache-2.0
// Lists the tensors that plan() of the readers asks for (needs.h).
#include "checkpoint/formats/needs.h"

namespace moebius {
namespace {

void add_side(std::vector<RoleNeed>& out, const std::optional<QuantArgs>& args, Role scale,
              Role zero_point) {
  if (!args) return;
  const bool fixed = args->dynamic == Dynamic::kStatic;
  out.push_back({scale, fixed});
  out.push_back({zero_point, fixed && args->kind == NumberKind::kInt && !args->symmetric});
}

bool is_packed(Format format) {
  return format == Format::kPackQuantized || format == Format::kNvfp4Pack ||
         format == Format::kMxfp4Pack || format == Format::kGptOssMxfp4 || is_turned(format);
}

}  // namespace

std::vector<RoleNeed> roles_of(const Scheme& scheme) {
  std::vector<RoleNeed> out;
  out.push_back({is_packed(scheme.format) ? Role::kWeightPacked : Role::kWeight, true});
  if (scheme.weights && scheme.format != Format::kDense) {
    const QuantArgs& w = *scheme.weights;
    if (scheme.format == Format::kGguf)  // blocks hold their scales
      return {{Role::kWeight, true}, {Role::kWeightGlobalScale, false}, {Role::kBias, false}};
    out.push_back({Role::kWeightScale, true});
    if (scheme.format == Format::kNvfp4Pack || scheme.format == Format::kModeloptNvfp4)
      out.push_back({Role::kWeightGlobalScale, true});
    if (scheme.format == Format::kPackQuantized) out.push_back({Role::kWeightShape, false});
    if (w.offsets) out.push_back({Role::kWeightOffset, true});
    if (scheme.format == Format::kMlx && is_nvfp4(w))
      out.push_back({Role::kWeightGlobalScale, false});
    if (scheme.format < Format::kGptOssMxfp4 || is_turned(scheme.format))
      out.push_back({Role::kWeightZeroPoint, !w.symmetric});
    // GPTQ files store it even for the natural order.
    const bool gptq = scheme.format == Format::kGptq || scheme.format == Format::kGptqV2 ||
                      scheme.format == Format::kGptqPlanar;
    if (w.act_order == ActOrder::kGroup || gptq) out.push_back({Role::kWeightGIdx, false});
    if (scheme.format == Format::kModeloptNvfp4)
      out.push_back({Role::kInputScale, scheme.input.has_value()});
    else if (scheme.input && is_nvfp4(*scheme.input))
      out.push_back({Role::kInputGlobalScale, true});
    else
      add_side(out, scheme.input, Role::kInputScale, Role::kInputZeroPoint);
    add_side(out, scheme.output, Role::kOutputScale, Role::kOutputZeroPoint);
  }
  out.push_back({Role::kBias, false});
  return out;
}

}  // namespace moebius
