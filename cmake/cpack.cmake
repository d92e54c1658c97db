# SPDX-License-Identifier: Apache-2.0
# cpack in a build folder: packages of Debian (moebius, libmoebius-dev, moebius-openmpi, moebius-mpich) and one .tar.gz, which can be
# unpacked anywhere. The archive also carries the libraries of others that the tool and the library need; the packages depend on
# those of the distribution they were built on.
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME moebius)
set(CPACK_PACKAGE_VENDOR Moebius)
set(MOEBIUS_MAINTAINER "" CACHE STRING "Who maintains the packages: NAME <ADDRESS>; empty: as cmake/cpack_generator.cmake says")
set(CPACK_PACKAGE_CONTACT "${MOEBIUS_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_SYSTEM_NAME "Linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_SOURCE_DIR}/cmake/cpack_generator.cmake")
set(CPACK_MOEBIUS_COMPONENTS tool dev)
foreach(mpi openmpi mpich)
  if(TARGET moebius_comm_${mpi})
    list(APPEND CPACK_MOEBIUS_COMPONENTS ${mpi})
  endif()
endforeach()

# .deb: dependencies are what dpkg-shlibdeps finds in each component.
if(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE amd64)
elseif(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(CPACK_DEBIAN_TOOL_PACKAGE_NAME moebius)
set(CPACK_DEBIAN_TOOL_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOL_PACKAGE_SHLIBDEPS ON)
file(WRITE "${PROJECT_BINARY_DIR}/debian/triggers" "activate-noawait ldconfig\n")
file(WRITE "${PROJECT_BINARY_DIR}/debian/shlibs" "libmoebius ${abi} moebius (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_TOOL_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/debian/triggers" "${PROJECT_BINARY_DIR}/debian/shlibs")
set(CPACK_COMPONENT_TOOL_DESCRIPTION "The tool, the server, libmoebius.so for C, and a small model.")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libmoebius-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS
    "moebius (= ${PROJECT_VERSION}), libfmt-dev, libonig-dev, libpcre2-dev, libutf8proc-dev")
set(CPACK_COMPONENT_DEV_DESCRIPTION "Headers, the static library for C++ and C, CMake and pkg-config files.")
foreach(mpi openmpi mpich)
  string(TOUPPER ${mpi} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME moebius-${mpi})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "moebius (= ${PROJECT_VERSION})")
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "Ranks that ${mpi} starts.")
endforeach()
# Debian asks for the terms of every package in its own folder.
foreach(component IN LISTS CPACK_MOEBIUS_COMPONENTS)
  string(TOUPPER ${component} upper)
  install(FILES cmake/copyright DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME}" COMPONENT ${component})
endforeach()

# .tar.gz: lib/moebius gets what only some systems have, share/doc/moebius/licenses the terms of each.
if(TARGET moebius_cli)
  set(other_places "")
  foreach(place IN LISTS CMAKE_FIND_ROOT_PATH)  # another architecture's
    string(APPEND other_places " \"${place}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}\" \"${place}/lib/${CMAKE_LIBRARY_ARCHITECTURE}\"")
  endforeach()
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES EXECUTABLES \"$<TARGET_FILE:moebius_cli>\" \"$<TARGET_FILE:moebius_bench>\"
      LIBRARIES \"$<TARGET_FILE:moebius_shared>\"
      DIRECTORIES ${other_places} RESOLVED_DEPENDENCIES_VAR libraries PRE_EXCLUDE_REGEXES [[^(ld-linux.*|lib(c|m|gcc_s|stdc\\+\\+|dl|pthread|rt))\\.so]])
    file(INSTALL \${libraries} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/moebius\" FOLLOW_SYMLINK_CHAIN)
    foreach(library IN LISTS libraries)
      get_filename_component(name \"\${library}\" NAME)
      execute_process(COMMAND dpkg-query -S \"*/\${name}\" OUTPUT_VARIABLE owner ERROR_QUIET)
      if(owner MATCHES \"^([^:]+):\")  # where there are packages of Debian, their terms must be there
        file(INSTALL \"/usr/share/doc/\${CMAKE_MATCH_1}/copyright\" RENAME \"\${CMAKE_MATCH_1}\"
             DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}/licenses\")
      endif()
    endforeach()" COMPONENT libraries EXCLUDE_FROM_ALL)
  # All that a package holds, and no test.
  add_custom_target(moebius_packages COMMAND "${CMAKE_CPACK_COMMAND}" WORKING_DIRECTORY "${PROJECT_BINARY_DIR}" VERBATIM
    DEPENDS moebius_cli moebius_bench moebius_shared moebius_lib moebius_shell_files)
endif()
include(CPack)
