# SPDX-License-Identifier: Apache-2.0
# cmake --install: headers, both libraries, tool and moebius-bench, bundled model, find_package(moebius) and pkg-config files. Nothing of it names
# the prefix, so the installed tree may be moved. Components are the packages of cmake/cpack.cmake:
#   tool  what runs       dev  what is compiled and linked against       openmpi, mpich  plugins (cmake/mpi.cmake)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/moebius)
install(TARGETS moebius_lib moebius_flags_build EXPORT moebius_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
install(EXPORT moebius_targets NAMESPACE moebius:: FILE moebius-targets.cmake DESTINATION ${package_dir} COMPONENT dev)
get_target_property(shared_left_out moebius_shared EXCLUDE_FROM_ALL)
if(NOT shared_left_out)
  install(TARGETS moebius_shared EXPORT moebius_shared_targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT tool NAMELINK_COMPONENT dev)
  install(EXPORT moebius_shared_targets NAMESPACE moebius:: FILE moebius-shared-targets.cmake DESTINATION ${package_dir} COMPONENT dev)
endif()
# Libraries of others that an archive carries (cmake/cpack.cmake) lie in lib/moebius; also those that they need are looked for there,
# which takes DT_RPATH.
set_target_properties(moebius_shared PROPERTIES INSTALL_RPATH "$ORIGIN/moebius")
target_link_options(moebius_shared PRIVATE "LINKER:--disable-new-dtags")
if(TARGET moebius_cli)
  foreach(program moebius_cli moebius_bench)  # side by side: the tool starts the second for `moebius bench`
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/${libraries_from_tool}/moebius")
    target_link_options(${program} PRIVATE "LINKER:--disable-new-dtags")
  endforeach()
  install(TARGETS moebius_cli moebius_bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tool)
  set(shell_files "${PROJECT_BINARY_DIR}/shell")
  add_custom_command(OUTPUT "${shell_files}/moebius.1" "${shell_files}/moebius.bash" "${shell_files}/_moebius"
    COMMAND "${CMAKE_COMMAND}" "-DTOOL=$<TARGET_FILE:moebius_cli>" "-DEMULATOR=${CMAKE_CROSSCOMPILING_EMULATOR}"
            "-DOUTPUT=${shell_files}" -P "${PROJECT_SOURCE_DIR}/cmake/shell_files.cmake"
    DEPENDS moebius_cli cmake/shell_files.cmake VERBATIM)
  add_custom_target(moebius_shell_files ALL DEPENDS "${shell_files}/moebius.1")
  # Left out where only the tool itself was built.
  install(FILES "${shell_files}/moebius.1" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tool OPTIONAL)
  install(FILES "${shell_files}/moebius.bash" RENAME moebius COMPONENT tool OPTIONAL
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES "${shell_files}/_moebius" DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT tool OPTIONAL)
endif()
if(SKBUILD)
  add_custom_target(wheel_files)
  add_dependencies(wheel_files moebius_shared moebius_cli moebius_bench)
  moebius_install_wheel($<TARGET_FILE:moebius_shared> $<TARGET_FILE:moebius_cli> $<TARGET_FILE:moebius_bench>)
endif()
install(FILES cmake/moebius.service DESTINATION lib/systemd/system COMPONENT tool)
install(DIRECTORY include/moebius DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT tool)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT tool)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev)
install(DIRECTORY models/ DESTINATION ${CMAKE_INSTALL_DATADIR}/moebius/models COMPONENT tool)

configure_package_config_file(cmake/moebius-config.cmake.in
  "${PROJECT_BINARY_DIR}/moebius-config.cmake" INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/moebius-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/moebius-config.cmake"
              "${PROJECT_BINARY_DIR}/moebius-config-version.cmake"
              cmake/FindPCRE2.cmake cmake/FindOniguruma.cmake cmake/FindUtf8proc.cmake
        DESTINATION ${package_dir} COMPONENT dev)

# Relative as well; the depth depends on the library folder (lib, lib/<triplet>).
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
           BASE_DIRECTORY "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" OUTPUT_VARIABLE MOEBIUS_PC_PREFIX)
foreach(file moebius.pc moebius-c.pc)
  configure_file(cmake/${file}.in "${PROJECT_BINARY_DIR}/${file}" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${file}" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
endforeach()
