// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/places.h"

#include <filesystem>

#include "base/file.h"

namespace moebius {
namespace {

// Joins "/a/bin" and "../share" to "/a/share".
std::string place_from(const std::string& program, const char* path) {
  std::string place = (std::filesystem::path(program) / path).lexically_normal().string();
  if (place.size() > 1 && place.back() == '/') place.pop_back();
  return place;
}

}  // namespace

std::string model_place(const std::string& program, const BuildPaths& places) {
  const bool is_build = path_exists(join_path(program, "CMakeCache.txt"));
  return join_path(place_from(program, is_build ? places.source : places.data), "models");
}

std::vector<std::string> plugin_places(const std::string& program, const BuildPaths& places) {
  return {program, place_from(program, places.plugins)};
}

}  // namespace moebius
