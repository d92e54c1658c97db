# SPDX-License-Identifier: Apache-2.0
# Run by the build: writes OUTPUT, a source file that names the git revision of SOURCE_DIR. The file changes only when the
# revision does, so nothing is recompiled for nothing.
execute_process(COMMAND git -C "${SOURCE_DIR}" describe --always --dirty --abbrev=12 --exclude "*"
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR commit STREQUAL "")
  set(commit unknown)
endif()
set(text "// Written by cmake/commit.cmake.\nnamespace moebius {\nextern const char* const kBuildCommit;\nconst char* const kBuildCommit = \"${commit}\";\n}  // namespace moebius\n")
set(before "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" before)
endif()
if(NOT text STREQUAL before)
  file(WRITE "${OUTPUT}" "${text}")
endif()
