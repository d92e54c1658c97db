// SPDX-License-Identifier: Apache-2.0
// Runs one unit of work: a pure function from the source's bytes to the bytes of its tensors.
#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/numeric.h"
#include "kernels/row_functions.h"
#include "quantize/calibration.h"
#include "quantize/gptq.h"
#include "quantize/module_encoder.h"
#include "quantize/quantize.h"
#include "quantize/schemes.h"
#include "quantize/search.h"

namespace moebius {
namespace {

// Encodes with the scales that lose least, and by GPTQ where the inputs are known well enough.
ModuleReport encode_searched(const MatrixSource& source, const Module& module, const Scheme& scheme,
                             const EncodeRules& rules, const QuantizeOptions& options,
                             const Moments& moments, const HessianFactor* factor, bool enough,
                             float input_scale, std::vector<std::vector<uint8_t>>& out) {
  const float* h = moments.known() ? moments.diagonal.data() : nullptr;
  EncodeRules searched = rules;
  // GPTQ rounds quotients once, in f32.
  searched.one_rounding = searched.one_rounding || factor != nullptr;
  ScaleTable table = searched_scales(source, *scheme.weights, searched, h);
  table.input_scale = input_scale;
  ModuleReport report{module.name, QuantizeMethod::kSearch, moments.rows, 0, {}};
  std::vector<uint8_t> codes;
  if (factor != nullptr) {
    const size_t N = source.rows(), K = source.columns();
    std::vector<float> weights(N * K);
    for (size_t r = 0; r < N; ++r) source.read_row(r, weights.data() + r * K);
    codes = gptq_codes(weights, N, *factor, rules, table);
    report.method = QuantizeMethod::kGptq;
  } else {
    codes = nearest_codes(source, rules, table);
  }
  if (options.method == QuantizeMethod::kGptq && factor == nullptr)
    report.reason = !moments.known()                           ? "its inputs are not seen"
                    : scheme.weights->kind != NumberKind::kInt ? "GPTQ is for integers"
                    : enough ? "the moments of its inputs have no factor"
                             : fmt::format("{} rows for {} inputs", moments.rows, moments.K);
  report.loss = relative_loss(source, rules, table, codes, h);
  for (std::vector<uint8_t>& bytes :
       pack_module(scheme, source.rows(), source.columns(), rules, table, codes))
    out.push_back(std::move(bytes));
  return report;
}

void encode_unit(const WorkUnit& unit, const TensorStore& store, const QuantizeOptions& options,
                 const Calibration* calibration, LoadBuffer& buffer, UnitResult& result) {
  std::vector<MatrixSource> sources;
  for (const Module* m : unit.modules) sources.emplace_back(*m, store, buffer, options.dtype);
  const QuantArgs& weights = *unit.scheme.weights;
  EncodeRules rules = encode_rules(weights, sources.front().type());
  rules.one_rounding = options.match == RtnMatch::kF32;
  if (rules.scales == EncodeRules::Scales::kFp8) {
    float most = 0;
    for (const MatrixSource& s : sources) most = std::max(most, largest_of(s));
    rules.global = global_scale_of(rules.type, most);
  }
  float input_scale = 0;
  if (has_stored_input_scale(unit.scheme)) {
    const Module& first = *unit.modules.front();  // all modules of a unit read the same rows
    const float most = calibration != nullptr ? calibration->largest(first) : -1;
    if (!(most >= 0) || !std::isfinite(most))
      fail("{}: {} and therefore gets no input scale; expected --ignore for it",
           printable(first.name),
           most < 0 ? "is not run on the calibration text" : "reads numbers that are not finite");
    input_scale = stored_input_scale(*unit.scheme.input, sources.front().type(), most);
  }
  if (options.method == QuantizeMethod::kRtn) {
    for (const MatrixSource& s : sources)
      for (std::vector<uint8_t>& bytes : encode_module_rtn(s, unit.scheme, rules, input_scale))
        result.tensors.push_back(std::move(bytes));
    return;
  }
  // Modules of a unit read the same rows, so they share the moments.
  const bool wanted = options.method == QuantizeMethod::kGptq && weights.kind == NumberKind::kInt;
  Moments moments;
  if (calibration != nullptr) moments = calibration->moments(*unit.modules.front(), wanted);
  for (const float h : moments.diagonal)
    if (!std::isfinite(h))
      fail(
          "{}: reads numbers that are not finite on the calibration text; expected a source that "
          "runs on it",
          printable(unit.modules.front()->name));
  HessianFactor factor;
  const bool enough =
      wanted && moments.known() &&
      static_cast<double>(moments.rows) >= options.min_rows * static_cast<double>(moments.K);
  bool factored = false;
  for (const float more : {1.0f, 10.0f, 100.0f})
    factored = factored || (enough && factorize(moments.hessian, moments.K, options.damp * more,
                                                options.by_size, factor));
  for (size_t i = 0; i < sources.size(); ++i)
    result.reports.push_back(encode_searched(sources[i], *unit.modules[i], unit.scheme, rules,
                                             options, moments, factored ? &factor : nullptr, enough,
                                             input_scale, result.tensors));
}

// Stores numbers in a type that can hold them: finite numbers stay finite. Throws Error.
void store_finite(XType type, const std::vector<float>& numbers, uint8_t* out,
                  const std::function<std::string()>& where) {
  row_functions().store(type, numbers.data(), out, numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i)
    if (std::isfinite(numbers[i]) && !std::isfinite(round_to(type, numbers[i])))
      fail("{}: holds {}, which {} does not; expected another --dtype", where(), numbers[i],
           dtype_name(type));
}

std::vector<uint8_t> decoded(const MatrixSource& source) {
  const size_t row_bytes = source.columns() * bits_of(stored_type(source.type())) / 8;
  std::vector<uint8_t> out(source.rows() * row_bytes);
  std::vector<float> row(source.columns());
  for (size_t r = 0; r < source.rows(); ++r) {
    source.read_row(r, row.data());
    if (!std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); }))
      source.fail_not_finite(r);
    row_functions().store(source.type(), row.data(), out.data() + r * row_bytes, row.size());
  }
  return out;
}

// Converts some of a tensor's numbers to another type.
std::vector<uint8_t> converted(const WorkUnit& unit, const TensorStore& store, XType type) {
  const XType from = type_of_numbers(unit.tensor->dtype);
  const uint64_t in = bits_of(unit.tensor->dtype) / 8, made = bits_of(stored_type(type)) / 8;
  const size_t n = unit.count / made;
  std::vector<uint8_t> bytes(n * in), out(unit.count);
  store.read(*unit.tensor, unit.begin / made * in, bytes);
  std::vector<float> numbers(n);
  row_functions().load(from, bytes.data(), numbers.data(), n);
  store_finite(type, numbers, out.data(), [&] { return store.where(*unit.tensor); });
  return out;
}

std::vector<uint8_t> bias_of(const Module& m, const TensorStore& store, DType type) {
  const std::vector<float> values = load_bias(m.plan, store);
  std::vector<uint8_t> out(values.size() * bits_of(type) / 8);
  store_finite(type_of_numbers(type), values, out.data(),
               [&] { return printable(m.name) + " (bias)"; });
  return out;
}

}  // namespace

UnitResult do_unit(const WorkUnit& unit, const TensorStore& store, const QuantizeOptions& options,
                   const Calibration* calibration, LoadBuffer& buffer) {
  UnitResult out;
  switch (unit.kind) {
    case WorkUnit::Kind::kCopy:
      out.tensors.emplace_back(unit.count);
      store.read(*unit.tensor, unit.begin, out.tensors.back());
      break;
    case WorkUnit::Kind::kConvert:
      out.tensors.push_back(converted(unit, store, *options.dtype));
      break;
    case WorkUnit::Kind::kDecode:
      out.tensors.push_back(
          decoded(MatrixSource(*unit.modules.front(), store, buffer, options.dtype)));
      break;
    case WorkUnit::Kind::kBias:
      out.tensors.push_back(bias_of(*unit.modules.front(), store, unit.dtype));
      break;
    case WorkUnit::Kind::kEncode:
      encode_unit(unit, store, options, calibration, buffer, out);
      break;
  }
  return out;
}

}  // namespace moebius
