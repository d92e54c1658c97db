// SPDX-License-Identifier: Apache-2.0
#include "device/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "device/stand_ins.h"

namespace moebius {
namespace {

bool known(std::string_view name) {
  return name == "cpu" || is_gpu_name(name) || stand_ins().is_name(name);
}

std::string check_name(std::string_view name) {
  if (!known(name))
    fail_at({"argument", "", "", "", "--device"},
            "'{}' is not a device of this build; there are: {}", name,
            fmt::join(device_names(), ", "));
  return std::string(name);
}

size_t number(std::string_view text, std::string_view all) {
  size_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size())
    fail_at({"argument", "", "", "", "--place"},
            "'{}': '{}' is no number of a layer; expected PART=DEV:N- or PART=DEV:N-M", all, text);
  return n;
}

struct PartRule {
  std::string part, device;
  size_t from = 0, until = SIZE_MAX;  // layers [from, until)
};

PartRule parse_part(std::string_view item) {
  const size_t eq = item.find('=');
  PartRule rule;
  rule.part = item.substr(0, eq);
  std::string_view rest = item.substr(eq + 1);
  if (const size_t colon = rest.find(':'); colon != std::string_view::npos) {
    const std::string_view layers = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
    const size_t dash = layers.find('-');
    rule.from = number(layers.substr(0, dash), item);
    rule.until = rule.from + 1;
    if (dash != std::string_view::npos)
      rule.until = dash + 1 == layers.size() ? SIZE_MAX : number(layers.substr(dash + 1), item) + 1;
    if (rule.until <= rule.from)
      fail_at({"argument", "", "", "", "--place"}, "'{}': its last layer lies before its first",
              item);
  }
  rule.device = check_name(rest);
  if (rule.part != "attention" && rule.part != "experts" && rule.part != "ends")
    fail_at({"argument", "", "", "", "--place"},
            "'{}' is no part of a model; expected attention, experts or ends", rule.part);
  return rule;
}

}  // namespace

StandIns& stand_ins() {
  static StandIns added;
  return added;
}

std::vector<std::string> device_names() { return {"cpu", "cuda", "cuda:N"}; }

const DevicePlacement::Rule& DevicePlacement::of(size_t layer) const {
  size_t i = 0;
  while (i + 1 < rules.size() && rules[i + 1].from <= layer) ++i;
  return rules[i];
}

bool DevicePlacement::one_device() const {
  return divided.empty() && std::all_of(rules.begin(), rules.end(), [&](const Rule& r) {
           return r.attention == ends && r.experts == ends;
         });
}

std::string DevicePlacement::describe() const {
  if (one_device()) return ends;
  std::string text = "ends=" + ends;
  for (size_t i = 0; i < rules.size(); ++i) {
    const std::string layers = rules.size() == 1 ? ""
                               : i + 1 < rules.size()
                                   ? fmt::format(":{}-{}", rules[i].from, rules[i + 1].from - 1)
                                   : fmt::format(":{}-", rules[i].from);
    text += fmt::format(",attention={}{},experts={}{}", rules[i].attention, layers,
                        rules[i].experts, layers);
  }
  if (!divided.empty()) text += fmt::format(", some experts of {} layers=cpu", divided.size());
  return text;
}

std::string DevicePlacement::gpu() const {
  std::string found;
  const auto look = [&](const std::string& name) {
    if (!is_gpu_name(name)) return;
    if (!found.empty() && found != name)
      fail_at({"argument", "", "", "", "--place"}, "{} and {}: a model runs on one CUDA device",
              found, name);
    found = name;
  };
  look(ends);
  for (const Rule& r : rules) look(r.attention), look(r.experts);
  return found;
}

std::vector<uint32_t> divided_places(const std::vector<uint32_t>& here, size_t experts) {
  std::vector<uint32_t> places = here;
  for (uint32_t e = 0; e < experts; ++e)
    if (!std::binary_search(here.begin(), here.end(), e)) places.push_back(e);
  if (places.size() != experts || here.size() == experts)
    fail("{} of {} experts on a device of a divided layer; expected not all", here.size(), experts);
  return places;
}

DevicePlacement parse_placement(std::string_view text) {
  DevicePlacement placement;
  std::vector<PartRule> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view item = text.substr(at, comma - at);
    at = comma + 1;
    if (item.find('=') != std::string_view::npos) {
      parts.push_back(parse_part(item));
      continue;
    }
    for (const char* part : {"ends", "attention", "experts"})
      parts.push_back({part, check_name(item)});
  }
  std::set<size_t> begins = {0};
  for (const PartRule& p : parts) {
    begins.insert(p.from);
    if (p.until != SIZE_MAX) begins.insert(p.until);
  }
  placement.rules.clear();
  for (const size_t begin : begins) {
    DevicePlacement::Rule rule;
    rule.from = begin;
    for (const PartRule& p : parts) {  // the last rule that names the layer applies
      if (begin < p.from || begin >= p.until) continue;
      if (p.part == "attention") rule.attention = p.device;
      if (p.part == "experts") rule.experts = p.device;
    }
    placement.rules.push_back(rule);
  }
  for (const PartRule& p : parts)
    if (p.part == "ends") placement.ends = p.device;
  static_cast<void>(placement.gpu());  // there is one CUDA device at most
  return placement;
}

std::shared_ptr<Device> make_device(const std::string& name, ThreadPool* pool, const Cpu& cpu,
                                    const DeviceOptions& options) {
  if (is_gpu_name(name)) return std::make_shared<CudaDevice>(name, pool, options);
  return std::make_shared<CpuDevice>(pool, cpu, options,
                                     name != "cpu" ? stand_ins().make(name) : nullptr);
}

DeviceSet::DeviceSet(const DevicePlacement& placement, ThreadPool* pool, const Cpu& cpu,
                     DeviceOptions options)
    : placement_(placement) {
  options.alone = placement.one_device();
  const auto add = [&](const std::string& name) {
    std::shared_ptr<Device>& device = devices_[name];
    if (device == nullptr) device = make_device(name, pool, cpu, options);
  };
  add(placement.ends);
  for (const DevicePlacement::Rule& r : placement.rules) add(r.attention), add(r.experts);
  if (!placement.divided.empty()) add("cpu");
  for (const auto& [name, device] : devices_) all_.push_back(device.get());
}

std::string_view name_of(Need need) {
  static constexpr std::string_view kNames[] = {"rows of several streams",
                                                "convolutions of what layers give",
                                                "a recurrent layer",
                                                "compressed keys",
                                                "sparse attention with an indexer",
                                                "logits by distance",
                                                "latents that are expanded at each use",
                                                "experts by a table of tokens"};
  static_assert(std::size(kNames) == static_cast<size_t>(Need::kTokenTable) + 1);
  return kNames[static_cast<size_t>(need)];
}

}  // namespace moebius
