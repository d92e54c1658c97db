# SPDX-License-Identifier: Apache-2.0
# Where the tool finds its models and plugins (src/apps/cli/places.h), as paths from its own folder: no file of the build names an
# absolute path, so a clone and an installed tree may be moved.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_DATADIR BASE_DIRECTORY "${CMAKE_INSTALL_FULL_BINDIR}" OUTPUT_VARIABLE data_from_tool)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY "${CMAKE_INSTALL_FULL_BINDIR}" OUTPUT_VARIABLE libraries_from_tool)
cmake_path(RELATIVE_PATH PROJECT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_BINARY_DIR}" OUTPUT_VARIABLE source_from_build)
set(places_source "${PROJECT_BINARY_DIR}/places_of_build.cpp")
file(CONFIGURE OUTPUT "${places_source}" CONTENT "// Written by cmake/places.cmake.
#include \"apps/cli/places.h\"
namespace moebius {
const BuildPaths kBuildPaths{\"@data_from_tool@/moebius\", \"@libraries_from_tool@/moebius\", \"@source_from_build@\"};
}  // namespace moebius
" @ONLY)
