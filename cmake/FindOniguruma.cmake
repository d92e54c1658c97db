# SPDX-License-Identifier: Apache-2.0
# Finds the Oniguruma regular expression library (Debian: libonig-dev) and defines Oniguruma::Oniguruma.
# Also installed beside moebius-config.cmake, because a static libmoebius needs it at link time.
find_path(Oniguruma_INCLUDE_DIR oniguruma.h)
find_library(Oniguruma_LIBRARY onig)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Oniguruma REQUIRED_VARS Oniguruma_LIBRARY Oniguruma_INCLUDE_DIR)
if(Oniguruma_FOUND AND NOT TARGET Oniguruma::Oniguruma)
  add_library(Oniguruma::Oniguruma UNKNOWN IMPORTED)
  set_target_properties(Oniguruma::Oniguruma PROPERTIES
    IMPORTED_LOCATION "${Oniguruma_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${Oniguruma_INCLUDE_DIR}")
endif()
mark_as_advanced(Oniguruma_INCLUDE_DIR Oniguruma_LIBRARY)
