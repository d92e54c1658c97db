# SPDX-License-Identifier: Apache-2.0
# Compiles one file of the CUDA plugin:  cmake -DNVCC= -DLAUNCHER= -DSOURCE= -DOBJECT= -DFLAGS="A|B" -P nvcc.cmake
# What the compiler said lies in OBJECT.log. What the assembler calls a possible loss of speed (tensor-core instructions that wait for each other, a register limit that it
# ignores) is an error here.
string(REPLACE "|" ";" FLAGS "${FLAGS}")
execute_process(COMMAND ${LAUNCHER} "${NVCC}" ${FLAGS} -MD -MF "${OBJECT}.d" -c "${SOURCE}" -o "${OBJECT}"
                RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
file(WRITE "${OBJECT}.log" "${said}")
if(said AND (status OR NOT said MATCHES "^ptxas info"))
  message("${said}")
endif()
if(status)
  message(FATAL_ERROR "nvcc failed for ${SOURCE}")
endif()
if(said MATCHES "C75(08|10|13|14|20)" AND NOT FLAGS MATCHES "LEAVE_OUT")
  file(REMOVE "${OBJECT}")
  message(FATAL_ERROR "${SOURCE}: tensor-core instructions were serialized")
endif()
