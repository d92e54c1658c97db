# SPDX-License-Identifier: Apache-2.0
# cmake -DTOOL=... -DEMULATOR=... -DOUTPUT=FOLDER -P shell_files.cmake: the man page and the completion scripts, as
# the tool itself prints them.
file(MAKE_DIRECTORY "${OUTPUT}")
foreach(pair "docs man:moebius.1" "completion bash:moebius.bash" "completion zsh:_moebius")
  string(REGEX MATCH "^(.*):(.*)$" _ "${pair}")
  set(file "${OUTPUT}/${CMAKE_MATCH_2}")
  string(REPLACE " " ";" words "${CMAKE_MATCH_1}")
  execute_process(COMMAND ${EMULATOR} "${TOOL}" ${words} OUTPUT_FILE "${file}" RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    file(REMOVE "${file}")
    message(FATAL_ERROR "${TOOL} ${CMAKE_MATCH_1} ended with ${result}")
  endif()
endforeach()
