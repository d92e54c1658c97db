# SPDX-License-Identifier: Apache-2.0
# Libraries that the build needs. When some are missing, one message names all of them and the line that installs them, with the packages of
# scripts/packages.txt.
set(missing_libraries "")
set(missing_packages "")

# need_library(NAME WORD [VERSION]): find_package(NAME); WORD is part of the name of its package.
macro(need_library name word)
  find_package(${name} ${ARGN} QUIET)
  if(NOT ${name}_FOUND)
    list(APPEND missing_libraries ${name})
    file(STRINGS "${PROJECT_SOURCE_DIR}/scripts/packages.txt" lines REGEX "^build [^ ]*${word}")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^build ([^ |]+).*$" "\\1" package "${line}")
      list(APPEND missing_packages ${package})
    endforeach()
  endif()
endmacro()

function(report_missing_libraries)
  if(NOT missing_libraries)
    return()
  endif()
  list(JOIN missing_libraries ", " libraries)
  list(JOIN missing_packages " " packages)
  message(FATAL_ERROR "These libraries were not found: ${libraries}. On Debian and Ubuntu:\n  sudo apt-get install ${packages}\n"
          "scripts/packages.txt has the whole list, with the names of other releases.")
endfunction()
