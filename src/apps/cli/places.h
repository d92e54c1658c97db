// SPDX-License-Identifier: Apache-2.0
// Where the tool finds what belongs to it. Everything is relative to its own file, so that an installed tree, a clone and an
// unpacked archive may be moved.
#pragma once
#include <string>
#include <vector>

namespace moebius {

// Of the build, as paths from the folder of the tool (written by CMake into places_of_build.cpp).
struct BuildPlaces {
  const char* data;     // installed: "../share/moebius"
  const char* plugins;  // installed: "../lib/moebius"
  const char* source;   // not installed: "../.."
};
extern const BuildPlaces kBuildPlaces;

// The folder of the bundled models for a tool in `program`: of its source tree where that is a build folder (it has a
// CMakeCache.txt), else the installed one.
std::string model_place(const std::string& program, const BuildPlaces& places);

// Where plugins may lie, in order: beside the tool, and where they are installed.
std::vector<std::string> plugin_places(const std::string& program, const BuildPlaces& places);

}  // namespace moebius
