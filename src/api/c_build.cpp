// SPDX-License-Identifier: Apache-2.0
// Implements the C interface of layers from memory over the C++ one.
#include "api/api.h"
#include "api/c_types.h"
#include "moebius/moebius.h"

namespace moebius {
namespace {

// Calls fn for each struct of a list; they lie `size` bytes apart, which the first one states.
template <class Struct, class F>
void for_each(const Struct* list, size_t count, const char* what, F&& fn) {
  if (count == 0) return;
  require(list, what);
  if (count > 1'000'000) bad_argument(std::string(what) + ": too many", what);
  const size_t step = list->size;
  for (size_t i = 0; i < count; ++i) {
    Struct one{};
    const auto* at = reinterpret_cast<const char*>(list) + i * step;
    take_struct(reinterpret_cast<const Struct*>(at), one, what);
    if (one.size != step) bad_argument(std::string(what) + ": sizes differ", what);
    fn(one);
  }
}

build::Scheme scheme_of(const moebius_scheme* scheme) {
  return scheme == nullptr ? build::Scheme() : get(scheme)->scheme;
}

std::vector<build::Tensor> tensors_of(const moebius_tensor* list, size_t count) {
  std::vector<build::Tensor> out;
  for_each(list, count, "tensors", [&](const moebius_tensor& t) {
    require(t.name, "tensors.name");
    if (t.rank > 4) bad_argument(std::string(t.name) + ": more than 4 dimensions", "tensors.rank");
    if (t.rank != 0) require(t.shape, "tensors.shape");
    build::Tensor& to = out.emplace_back();
    to.name = t.name;
    to.data = t.data;
    to.type = enum_of<build::TensorType>(t.type, 9, "tensor type");
    to.shape.assign(t.shape, t.shape + t.rank);
    if (t.stride != nullptr) to.strides.assign(t.stride, t.stride + t.rank);
  });
  return out;
}

std::vector<build::Part> parts_of(const moebius_part* list, size_t count) {
  std::vector<build::Part> out;
  for_each(list, count, "parts", [&](const moebius_part& p) {
    const std::string name = text_of(p.name);
    out.push_back(naming_part(name, out.size(), [&]() -> build::Part {
      return {name,
              scheme_of(p.scheme),
              p.outputs,
              p.inputs,
              enum_of<build::Split>(p.split, 3, "split"),
              tensors_of(p.tensors, p.tensor_count),
              p.tp,
              p.tp_rank};
    }));
  });
  return out;
}

build::MoeSpec spec_of(const moebius_moe_spec* given) {
  require(given, "spec");
  moebius_moe_spec s{};
  take_struct(given, s, "moebius_moe_spec");
  build::MoeSpec out;
  if (s.name != nullptr) out.name = s.name;
  out.hidden = s.hidden;
  out.intermediate = s.intermediate;
  out.experts = s.experts;
  out.slots = s.slots;
  if (s.activation != nullptr) out.activation = s.activation;
  out.limit = s.limit;
  if (s.alpha != 0) {
    out.alpha = s.alpha;
    out.beta = s.beta;
  }
  if (s.experts > (1 << 20)) bad_argument("experts: too many", "experts");
  if (s.expert_map != nullptr) out.expert_map.assign(s.expert_map, s.expert_map + s.experts);
  if (s.gate_up_step != 0) out.gate_up_step = s.gate_up_step;
  if (s.scoring != nullptr) out.scoring = s.scoring;
  out.renormalize = s.renormalize != 0;
  out.groups = s.groups;
  out.group_slots = s.group_slots;
  if (s.scaling != 0) out.scaling = s.scaling;
  if (s.correction_bias != nullptr)
    out.correction_bias.assign(s.correction_bias, s.correction_bias + s.experts);
  return out;
}

}  // namespace
}  // namespace moebius

using namespace moebius;  // NOLINT: no header, though bundles include it

moebius_scheme* moebius_scheme_parse(const char* json) {
  return made<moebius_scheme>([&] {
    require(json, "json");
    return build::Scheme::parse(json);
  });
}
void moebius_scheme_free(moebius_scheme* scheme) { free_handle(scheme); }
char* moebius_scheme_family(const moebius_scheme* s) {
  return answer([&] { return get(s)->scheme.family(); });
}
char* moebius_scheme_describe(const moebius_scheme* s) {
  return answer([&] { return get(s)->scheme.describe(); });
}
char* moebius_scheme_problem(const moebius_scheme* s, int expert) {
  return answer([&] { return get(s)->scheme.problem(expert != 0); });
}
size_t moebius_scheme_tensor_count(const moebius_scheme* s) {
  return answer([&] { return get(s)->tensors.size(); });
}
const char* moebius_scheme_tensor(const moebius_scheme* s, size_t i, int* required) {
  return answer([&] {
    const std::vector<build::TensorNeed>& all = get(s)->tensors;
    const build::TensorNeed& need = item_of(all, i, "tensor", "", "i");
    if (required != nullptr) *required = need.required ? 1 : 0;
    return need.suffix.c_str();  // valid as long as the scheme
  });
}

moebius_linear* moebius_linear_build(const moebius_part* parts, size_t count,
                                     const moebius_options* options) {
  return made<moebius_linear>(
      [&] { return build::linear(parts_of(parts, count), options_of(options)); });
}

moebius_moe_builder* moebius_moe_begin(const moebius_moe_spec* spec, const moebius_scheme* gate,
                                       const moebius_scheme* up, const moebius_scheme* down,
                                       const moebius_options* options) {
  return made<moebius_moe_builder>([&] {
    return build::MoeBuilder(spec_of(spec), scheme_of(gate), scheme_of(up), scheme_of(down),
                             options_of(options));
  });
}
int moebius_moe_set_expert(moebius_moe_builder* builder, size_t id, const moebius_tensor* tensors,
                           size_t count) {
  return answer([&] { get(builder)->set_expert(id, tensors_of(tensors, count)); });
}
moebius_moe* moebius_moe_finish(moebius_moe_builder* builder) {
  return made<moebius_moe>([&] { return get(builder)->finish(); });
}
void moebius_moe_builder_free(moebius_moe_builder* builder) { free_handle(builder); }
