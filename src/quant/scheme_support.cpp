// SPDX-License-Identifier: Apache-2.0
// Decides which schemes the engine refuses, and says why. The list is short on purpose:
// granularity, symmetry, group size and block shape are free; a scheme is refused when it has no
// defined arithmetic or contradicts its own storage format.
#include <fmt/format.h>

#include "quant/scheme.h"

namespace moebius {
namespace {

using Reason = std::optional<std::string>;

bool is_int(const QuantArgs& a) { return a.kind == NumberKind::kInt; }
bool is_static(const QuantArgs& a) { return a.dynamic == Dynamic::kStatic; }

Reason weight_reason(const QuantArgs& w) {
  if (is_int(w) && (w.bits < 1 || w.bits > 8))
    return fmt::format("weights.num_bits is {}; int weights have 1 to 8 bits", w.bits);
  if (!is_int(w) && w.bits != 4 && w.bits != 8)
    return fmt::format("weights.num_bits is {}; float weights have 4 or 8 bits", w.bits);
  if (!is_static(w)) return "weights.dynamic is set; stored weights need static scales";
  if (w.strategy == Strategy::kToken || w.strategy == Strategy::kAttnHead)
    return fmt::format(
        "weights.strategy is {}; weights take tensor, channel, group, tensor_group or block",
        name_of(w.strategy));
  if (w.offsets && (!is_int(w) || w.symmetric || w.strategy != Strategy::kGroup))
    return fmt::format(
        "weights are {} with an offset per group; only int weights in groups have it", describe(w));
  if (!is_int(w) && !w.symmetric)
    return "weights.symmetric is false; float weights have no zero points";
  if (!is_int(w) && w.bits == 4 && !is_nvfp4(w) && !is_mxfp4(w))
    return fmt::format(
        "weights are {}; 4-bit floats are NVFP4 (tensor_group of 16) or MXFP4 (group of 32)",
        describe(w));
  if (w.strategy == Strategy::kTensorGroup && !is_nvfp4(w))
    return fmt::format(
        "weights.strategy is tensor_group with {}; only NVFP4 (float, 4 bit, group_size 16) has it",
        describe(w));
  if (w.act_order == ActOrder::kGroup && (!is_int(w) || w.strategy != Strategy::kGroup))
    return fmt::format("weights.actorder is group with {}; only int weights in groups have it",
                       describe(w));
  return std::nullopt;
}

Reason format_reason(const QuantArgs& w, Format format) {
  const auto differs = [&](std::string_view needs) {
    return fmt::format("format is {} but weights are {}; this format holds {}", name_of(format),
                       describe(w), needs);
  };
  const bool fp4 = !is_int(w) && w.bits == 4;
  switch (format) {
    case Format::kDense:
      return fmt::format(
          "format is dense but weights are declared as {}; expected the name of the format they "
          "are stored in",
          describe(w));
    case Format::kIntQuantized:
    case Format::kFloatQuantized:
    case Format::kNaiveQuantized:
    case Format::kNativeFp8:
      return fp4 ? Reason(differs("one byte per weight: int or 8-bit float")) : std::nullopt;
    case Format::kPackQuantized:
    case Format::kGptq:
    case Format::kGptqV2:
    case Format::kGptqPlanar:
    case Format::kAwq:
    case Format::kQuarkInt4:
    case Format::kAwqGemv:
      return !is_int(w) ? Reason(differs("packed integers")) : std::nullopt;
    case Format::kNvfp4Pack:
    case Format::kModeloptNvfp4:
      return !is_nvfp4(w) ? Reason(differs("NVFP4: float, 4 bit, tensor_group 16")) : std::nullopt;
    case Format::kMxfp4Pack:
    case Format::kGptOssMxfp4:
      return !is_mxfp4(w) ? Reason(differs("MXFP4: float, 4 bit, group 32")) : std::nullopt;
    case Format::kMlx:
      return !(w.offsets || is_mxfp4(w) || is_mxfp8(w) || is_nvfp4(w))
                 ? Reason(differs("integers with an offset per group, MXFP4, MXFP8 or NVFP4"))
                 : std::nullopt;
    case Format::kGguf:  // the scheme was made from the tensor's type
      return std::nullopt;
    case Format::kMxfp8:
      return !is_mxfp8(w) ? Reason(differs("MXFP8: float, 8 bit, group 32, scale_dtype uint8"))
                          : std::nullopt;
  }
  return std::nullopt;
}

// Returns why inputs of this kind run with no weights; nothing when they may run.
Reason input_reason(const QuantArgs& x) {
  if (x.strategy == Strategy::kAttnHead || x.strategy == Strategy::kChannel ||
      x.strategy == Strategy::kBlock)
    return fmt::format(
        "input_activations.strategy is {}; inputs take tensor, token, group or tensor_group",
        name_of(x.strategy));
  if (is_int(x) && (x.bits < 2 || x.bits > 8))
    return fmt::format("input_activations.num_bits is {}; int inputs have 2 to 8 bits", x.bits);
  if (!is_int(x) && x.bits != 4 && x.bits != 8)
    return fmt::format("input_activations.num_bits is {}; float inputs have 4 or 8 bits", x.bits);
  if (!is_int(x) && !x.symmetric)
    return "input_activations.symmetric is false; float inputs have no zero points";
  if (is_static(x) && x.strategy != Strategy::kTensor && !is_nvfp4(x))
    return fmt::format(
        "input_activations are static with strategy {}; a stored input scale is one per tensor",
        name_of(x.strategy));
  if (!is_int(x) && x.bits == 4 && !is_nvfp4(x) && !is_mxfp4(x))
    return fmt::format(
        "input_activations are {}; 4-bit floats are NVFP4 (tensor_group of 16) or MXFP4 (group of "
        "32)",
        describe(x));
  if (x.strategy == Strategy::kTensorGroup && !is_nvfp4(x))
    return fmt::format("input_activations.strategy is tensor_group with {}; only NVFP4 has it",
                       describe(x));
  if (is_int(x) && !x.symmetric && x.strategy == Strategy::kGroup)
    return "input_activations are asymmetric int in groups; asymmetric inputs are per token or per "
           "tensor";
  return std::nullopt;
}

Reason int_weight_reason(const QuantArgs& w, const QuantArgs& x) {
  if (!is_int(x) && x.bits == 4)
    return fmt::format("weights are {} with {} inputs; 4-bit float inputs need 4-bit float weights",
                       describe(w), describe(x));
  if (!is_int(x) && is_static(x))
    return fmt::format(
        "weights are {} with static float inputs; integer weights take dynamic 8-bit float inputs",
        describe(w));
  if (w.act_order == ActOrder::kGroup && x.strategy == Strategy::kGroup)
    return "weights.actorder is group with input_activations in groups; their columns would not "
           "meet";
  return std::nullopt;
}

Reason fp8_reason(const QuantArgs& w, const QuantArgs& x, bool routed_expert) {
  if (is_int(x) || x.bits != 8)
    return fmt::format(
        "weights are {} with {} inputs; 8-bit float weights need 8-bit float inputs or none",
        describe(w), describe(x));
  const bool pair = w.strategy == Strategy::kBlock || w.strategy == Strategy::kGroup ||
                    (w.strategy == Strategy::kTensor && x.strategy == Strategy::kTensor) ||
                    (w.strategy == Strategy::kChannel && x.strategy == Strategy::kToken);
  if (routed_expert && !pair)
    return fmt::format(
        "weights.strategy is {} with {} input_activations of strategy {}; FP8 experts are either "
        "per tensor in both, "
        "or per channel with dynamic per-token inputs, or in blocks",
        name_of(w.strategy), is_static(x) ? "static" : "dynamic", name_of(x.strategy));
  return std::nullopt;
}

Reason pair_reason(const Scheme& s, bool routed_expert) {
  const QuantArgs &w = *s.weights, &x = *s.input;
  if (is_nvfp4(w) && !is_nvfp4(x))
    return fmt::format("weights are NVFP4 with {} inputs; NVFP4 weights need NVFP4 inputs or none",
                       describe(x));
  if (!is_nvfp4(w) && is_nvfp4(x))
    return fmt::format("inputs are NVFP4 with {} weights; NVFP4 inputs need NVFP4 weights",
                       describe(w));
  if (is_mxfp4(w) && !is_mxfp4(x) && is_int(x))
    return fmt::format(
        "weights are MXFP4 with {} inputs; MXFP4 weights need MXFP4 or 8-bit float inputs, or none",
        describe(x));
  if (is_mxfp4(x) && (is_static(x) || !is_mxfp4(w)))
    return fmt::format(
        "inputs are {} MXFP4 with {} weights; MXFP4 inputs are dynamic and need MXFP4 weights",
        is_static(x) ? "static" : "dynamic", describe(w));
  if (is_mxfp8(w) && is_static(x))
    return "weights are MXFP8 with static inputs; MXFP8 inputs are dynamic";
  if (w.offsets)
    return fmt::format(
        "weights are {} with {} inputs; weights with an offset per group take inputs "
        "as they are",
        describe(w), describe(x));
  if (is_int(w)) return int_weight_reason(w, x);
  return w.bits == 8 ? fp8_reason(w, x, routed_expert) : std::nullopt;
}

// Checks quantized outputs, which exist in one family: integer weights, static symmetric int8 per
// tensor for inputs and outputs.
Reason output_reason(const Scheme& s) {
  const auto fits = [](const std::optional<QuantArgs>& a) {
    return a && is_int(*a) && a->bits == 8 && is_static(*a) && a->strategy == Strategy::kTensor;
  };
  if (!fits(s.output) || !fits(s.input) || !is_int(*s.weights))
    return fmt::format(
        "output_activations are {}; quantized outputs need int weights and static per-tensor int8 "
        "inputs and outputs",
        describe(*s.output));
  const QuantArgs& w = *s.weights;
  if (w.bits != 2 && w.bits != 4 && w.bits != 8)
    return fmt::format(
        "weights.num_bits is {}; with quantized outputs the supported widths are 2, 4, 8", w.bits);
  if (!w.symmetric || !s.input->symmetric || !s.output->symmetric)
    return "symmetric is false; with quantized outputs weights, inputs and outputs must be "
           "symmetric";
  if (w.strategy != Strategy::kChannel && w.strategy != Strategy::kGroup)
    return fmt::format("weights.strategy is {}; with quantized outputs it must be channel or group",
                       name_of(w.strategy));
  return std::nullopt;
}

}  // namespace

std::optional<std::string> unsupported_reason(const Scheme& scheme, bool routed_expert) {
  if (!scheme.weights) {
    if (scheme.input || scheme.output)
      return "activations are quantized but weights is null; dense weights take inputs as they are";
    return std::nullopt;
  }
  if (Reason r = weight_reason(*scheme.weights)) return r;
  if (Reason r = format_reason(*scheme.weights, scheme.format)) return r;
  if (scheme.input) {
    if (Reason r = input_reason(*scheme.input)) return r;
    if (Reason r = pair_reason(scheme, routed_expert)) return r;
  }
  return scheme.output ? output_reason(scheme) : std::nullopt;
}

}  // namespace moebius
