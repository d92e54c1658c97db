# SPDX-License-Identifier: Apache-2.0
# What pip asks for (pyproject.toml; scikit-build-core sets SKBUILD): the shared library inside the package, and the tool and the
# bundled model below it as in an installed tree: moebius/libmoebius.so, moebius/bin/moebius{,-bench}, moebius/share/moebius/models.
#
# moebius_install_wheel(LIBRARY PROGRAM...)
function(moebius_install_wheel library)
  install(FILES "${library}" DESTINATION . RENAME libmoebius.so COMPONENT python)
  install(PROGRAMS ${ARGN} DESTINATION bin COMPONENT python)
  install(DIRECTORY models/moebius-tiny-w4a8 DESTINATION share/moebius/models COMPONENT python)
endfunction()

# Where ./moebius or ./test has built this tree, the wheel takes its library and programs; only what is older than its sources is
# compiled again.
set(wheel_from_release OFF)
set(release "${PROJECT_SOURCE_DIR}/build/release")
if(SKBUILD AND EXISTS "${release}/build.ninja" AND EXISTS "${release}/CMakeCache.txt")
  # Without an encoding a string would end at the first letter that is not ASCII. The same folder may have several names.
  file(STRINGS "${release}/CMakeCache.txt" home REGEX "^CMAKE_HOME_DIRECTORY:INTERNAL=." ENCODING UTF-8)
  string(REGEX REPLACE "^[^=]*=" "" home "${home}")
  file(REAL_PATH "${PROJECT_SOURCE_DIR}" here)
  file(REAL_PATH "${home}" home BASE_DIRECTORY "${release}")
  if(home STREQUAL here)
    set(wheel_from_release ON)
    message(STATUS "The library and the tool are those of build/release")
    add_custom_target(wheel_files USES_TERMINAL
      COMMAND "${CMAKE_COMMAND}" -DMOEBIUS_KERNELS=all "${release}"
      COMMAND "${CMAKE_COMMAND}" --build "${release}" --target moebius_shared moebius_cli moebius_bench
      COMMAND "${CMAKE_COMMAND}" -E copy "${release}/libmoebius.so" "${PROJECT_BINARY_DIR}/libmoebius.so")  # the file, not the link
    moebius_install_wheel("${PROJECT_BINARY_DIR}/libmoebius.so" "${release}/moebius" "${release}/moebius-bench")
  endif()
endif()
