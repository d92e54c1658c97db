// SPDX-License-Identifier: Apache-2.0
// Finds the files that belong to the tool. All paths are relative to the tool's own file, so that
// an installed tree, a clone and an unpacked archive can be moved.
#pragma once
#include <string>
#include <vector>

namespace moebius {

// Holds the build's paths relative to the tool's folder (CMake writes them into
// places_of_build.cpp).
struct BuildPaths {
  const char* data;     // folder of data if installed: "../share/moebius"
  const char* plugins;  // folder of plugins if installed: "../lib/moebius"
  const char* source;   // root of the source tree if not installed: "../.."
};
extern const BuildPaths kBuildPaths;

// Returns the folder of the bundled models for a tool in `program`: in its source tree if that is a
// build folder (with a CMakeCache.txt), else the installed one.
std::string model_place(const std::string& program, const BuildPaths& places);

// Returns the folders to search for plugins, in order: the tool's own, then the installed one.
std::vector<std::string> plugin_places(const std::string& program, const BuildPaths& places);

}  // namespace moebius
