# SPDX-License-Identifier: Apache-2.0
# cmake --install: headers, library, tool, bundled model, find_package(moebius) and pkg-config files.
include(CMakePackageConfigHelpers)

install(TARGETS ${installed_library} moebius_flags_build EXPORT moebius_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET moebius_cli)
  install(TARGETS moebius_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  set(shell_files "${PROJECT_BINARY_DIR}/shell")
  add_custom_command(OUTPUT "${shell_files}/moebius.1" "${shell_files}/moebius.bash" "${shell_files}/_moebius"
    COMMAND "${CMAKE_COMMAND}" "-DTOOL=$<TARGET_FILE:moebius_cli>" "-DEMULATOR=${CMAKE_CROSSCOMPILING_EMULATOR}"
            "-DOUTPUT=${shell_files}" -P "${PROJECT_SOURCE_DIR}/cmake/shell_files.cmake"
    DEPENDS moebius_cli cmake/shell_files.cmake VERBATIM)
  add_custom_target(moebius_shell_files ALL DEPENDS "${shell_files}/moebius.1")
  # Left out where only the tool itself was built.
  install(FILES "${shell_files}/moebius.1" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
  install(FILES "${shell_files}/moebius.bash" RENAME moebius OPTIONAL
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES "${shell_files}/_moebius" DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions OPTIONAL)
endif()
# The Python package (pyproject.toml): the library inside it, the tool among its scripts.
if(SKBUILD)
  install(FILES $<TARGET_FILE:moebius_shared> DESTINATION . RENAME libmoebius.so COMPONENT python)
  install(PROGRAMS $<TARGET_FILE:moebius_cli> DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT python)
endif()
configure_file(cmake/moebius.service.in "${PROJECT_BINARY_DIR}/moebius.service" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/moebius.service" DESTINATION lib/systemd/system)
if(EXISTS "${PROJECT_SOURCE_DIR}/include/moebius")
  install(DIRECTORY include/moebius DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(EXISTS "${PROJECT_SOURCE_DIR}/models")
  install(DIRECTORY models/ DESTINATION ${CMAKE_INSTALL_DATADIR}/moebius/models)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/moebius)
install(EXPORT moebius_targets NAMESPACE moebius:: FILE moebius-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/moebius-config.cmake.in
  "${PROJECT_BINARY_DIR}/moebius-config.cmake" INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/moebius-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/moebius-config.cmake"
              "${PROJECT_BINARY_DIR}/moebius-config-version.cmake"
              cmake/FindPCRE2.cmake cmake/FindOniguruma.cmake cmake/FindUtf8proc.cmake
        DESTINATION ${package_dir})

# Relative, so that the installed tree may move; the depth depends on the library folder (lib, lib/<triplet>).
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
           BASE_DIRECTORY "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" OUTPUT_VARIABLE MOEBIUS_PC_PREFIX)
configure_file(cmake/moebius.pc.in "${PROJECT_BINARY_DIR}/moebius.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/moebius.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
