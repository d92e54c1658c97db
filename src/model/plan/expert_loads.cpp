// SPDX-License-Identifier: Apache-2.0
#include "model/plan/expert_loads.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace moebius {
namespace {

constexpr std::string_view kLoadsKey = "moebius_expert_loads";
constexpr uint64_t kMostLoadsBytes = uint64_t{1} << 26;
constexpr uint64_t kMostRows = uint64_t{1} << 53;

size_t layer_number(const std::string& key, std::string_view what) {
  size_t layer = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
  if (error != std::errc() || end != key.data() + key.size() || layer > 65535)
    fail("{}: '{}' is no number of a layer", what, printable(key));
  return layer;
}

}  // namespace

std::string write_loads(const ExpertLoads& loads) {
  Json layers = Json::object();
  for (const auto& [layer, rows] : loads) {
    Json list = Json::array();
    for (const uint64_t n : rows) list.push(n);
    layers.set(std::to_string(layer), std::move(list));
  }
  return Json::object({{std::string(kLoadsKey), 1}, {"layers", std::move(layers)}}).dump() + "\n";
}

ExpertLoads parse_loads(std::string_view text, std::string_view what) {
  const Json file = parse_json(text, what);
  const Json *version = file.find(kLoadsKey), *layers = file.find("layers");
  if (version == nullptr || version->kind() != Json::Kind::kUint || version->as_uint() != 1)
    fail("{}: is no file of loads; expected \"{}\": 1", what, kLoadsKey);
  if (layers == nullptr || !layers->is_object())
    fail("{}: has no \"layers\"; expected a list of rows for each", what);
  ExpertLoads loads;
  for (const auto& [key, list] : layers->members()) {
    std::vector<uint64_t>& rows = loads[layer_number(key, what)];
    if (!list.is_array() || !rows.empty())
      fail("{}: layer {} is given twice or is no list", what, printable(key));
    for (const Json& n : list.items()) {
      if (n.kind() != Json::Kind::kUint || n.as_uint() > kMostRows)
        fail("{}: layer {}: expected rows of each expert, numbers up to 2^53", what,
             printable(key));
      rows.push_back(n.as_uint());
    }
  }
  return loads;
}

ExpertLoads read_loads(const std::string& file) {
  std::error_code error;
  // A device or a pipe holds no loads of earlier runs.
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status) || std::filesystem::is_other(status)) return {};
  return parse_loads(read_text_file(file, kMostLoadsBytes), file);
}

void save_loads(const std::string& file, const ExpertLoads& loads) {
  const std::string text = write_loads(loads);
  const std::span<const uint8_t> bytes{reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  write_output(file, {&bytes, 1});
}

void keep_loads(const std::string& file, const ExpertLoads& loads,
                const std::function<void(const std::string& line)>& warn) noexcept {
  if (file.empty()) return;
  try {
    save_loads(file, loads);
  } catch (const std::exception& e) {
    try {
      if (warn) warn(fmt::format("loads of experts were not saved: {}", e.what()));
    } catch (const std::exception&) {  // no memory for the message
    }
  }
}

}  // namespace moebius
