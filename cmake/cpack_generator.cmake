# SPDX-License-Identifier: Apache-2.0
# Read by cpack before each kind of package: which components it holds, and who maintains a .deb (as Debian's own tools ask:
# DEBFULLNAME and DEBEMAIL; else the author of the newest commit).
set(CPACK_COMPONENTS_ALL ${CPACK_MOEBIUS_COMPONENTS})
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  if(NOT CPACK_PACKAGE_CONTACT AND NOT "$ENV{DEBEMAIL}" STREQUAL "")
    string(STRIP "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>" CPACK_PACKAGE_CONTACT)
  elseif(NOT CPACK_PACKAGE_CONTACT)
    execute_process(COMMAND git -C "${CMAKE_CURRENT_LIST_DIR}" -c safe.directory=* log -1 "--format=%an <%ae>"
                    OUTPUT_VARIABLE CPACK_PACKAGE_CONTACT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT CPACK_PACKAGE_CONTACT)
    message(FATAL_ERROR "Nobody is named who maintains the .deb packages: set DEBEMAIL (and DEBFULLNAME), or configure with\n"
            "  -DMOEBIUS_MAINTAINER='NAME <ADDRESS>'")
  endif()
else()
  list(APPEND CPACK_COMPONENTS_ALL libraries)
  set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
