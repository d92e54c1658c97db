# SPDX-License-Identifier: Apache-2.0
# The one place that gives files their own compiler flags.
#
# An instruction-set file is named src/kernels/{arm,x86}/<isa>*.cpp. Its flags, and MOEBIUS_KERNEL_BODIES, are added only
# when the target architecture matches: on other machines the file compiles to its table of facts alone. Rows are
# tried in order and the first match wins, so longer names stand before their prefixes.
# Columns: architecture | file name pattern (regular expression) | words of /proc/cpuinfo | flags
#
# With MOEBIUS_KERNELS=native a file also compiles to its facts alone where this CPU lacks one of the words, or has one that
# stands behind a "!": it then takes better kernels for every problem. All other files have the same flags either way.
set(MOEBIUS_KERNEL_FLAGS
  "aarch64|^arm_dotprod.*|asimddp|-march=armv8.2-a+dotprod"
  "aarch64|^arm_limbs_dotprod.*|asimddp|-march=armv8.2-a+dotprod"
  "aarch64|^arm_limbs_i8mm.*|i8mm|-march=armv8.2-a+dotprod+i8mm+bf16"
  "aarch64|^arm_i8mm.*|i8mm|-march=armv8.2-a+dotprod+i8mm"
  "aarch64|^arm_bf16.*|bf16|-march=armv8.2-a+bf16"
  "aarch64|^arm_fhm.*|asimdfhm|-march=armv8.2-a+fp16+fp16fml"
  "aarch64|^arm_neon.*||"
  "x86_64|^x86_avxvnni.*|avx_vnni !avx512_vnni|-mavx2 -mfma -mf16c -mavxvnni"
  "x86_64|^x86_avx512_rows.*|avx512bw|-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512 -fno-math-errno"
  "x86_64|^x86_avx2_rows.*|avx2 !avx512bw|-mavx2 -mfma -mf16c -fno-math-errno"
  "x86_64|^x86_avx2_int8_pack.*|avx2|-mavx2 -mfma -mf16c"
  "x86_64|^x86_avx2.*|avx2 !avx512bw|-mavx2 -mfma -mf16c"
  "x86_64|^x86_avx512bw.*|avx512bw !avx512_vnni|-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl"
  "x86_64|^x86_avx512_float.*|avx512bw|-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl"
  "x86_64|^x86_avx512.*|avx512_vnni|-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni"
  "x86_64|^x86_amx.*|amx_tile|-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16 -mavx512vbmi -mamx-tile -mamx-int8 -mamx-bf16"
)
# Optimization of release builds: level and paths below src/, first match wins. Files that no row names are built with -Og,
# which compiles in half the time of -O2 and costs no speed where a step, a token or a request spends none (g++ 12 takes moved
# optionals for uninitialized there; units at other levels and preset clang look for such values).
set(MOEBIUS_LEVELS
  "-O3 ^kernels/([a-z_]+[.]|generic/|[a-z0-9_/]*_rows)"
  "-O2 ^kernels/"  # intrinsics and assembly, where -O3 only takes longer
  "-O3 ^(nn|quant|checkpoint/formats|device/cpu/(attention|compressor|expert|layer_ops|ngram|row))"
  "-O3 ^quantize/(gptq|search)"
  "-O2 ^(base|device/cuda|model/graph|model/run)/"
  "-O2 ^text/([a-z0-9_]+|grammar/(dfa|grammar|json_text|masks|matcher|token_trie))[.]"
  "-O1 ^(engine|text)/"  # a request spends little time there, but some
  "-O2 ^(runtime/(thread_pool|parallel|comm_threads)|serve/http(_parser)?)[.]"
)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(MOEBIUS_ARCH aarch64)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(MOEBIUS_ARCH x86_64)
else()
  set(MOEBIUS_ARCH "${CMAKE_SYSTEM_PROCESSOR}")
endif()

set(MOEBIUS_KERNELS all CACHE STRING "Kernels: all, or native (those that this CPU takes by itself; builds with tests have all)")
set_property(CACHE MOEBIUS_KERNELS PROPERTY STRINGS all native)
if(NOT MOEBIUS_KERNELS MATCHES "^(all|native)$")
  message(FATAL_ERROR "MOEBIUS_KERNELS: expected all or native, found ${MOEBIUS_KERNELS}")
endif()
set(cpu_words "")  # of this CPU; empty: no kernel is left out
if(MOEBIUS_KERNELS STREQUAL "native" AND NOT MOEBIUS_TESTS AND NOT CMAKE_CROSSCOMPILING)
  if(NOT MOEBIUS_CPUINFO)
    set(MOEBIUS_CPUINFO /proc/cpuinfo)
  endif()
  if(EXISTS "${MOEBIUS_CPUINFO}")
    file(STRINGS "${MOEBIUS_CPUINFO}" cpu_words REGEX "^(flags|Features)[ \t]*:" LIMIT_COUNT 1)
    string(REGEX REPLACE "[ \t:]+" ";" cpu_words "${cpu_words}")
  endif()
endif()
# kernels_left_out: what this build took for granted, for ./moebius, which asks for all kernels where it no longer holds.
set(MOEBIUS_LEFT_OUT_FILE "${PROJECT_BINARY_DIR}/kernels_left_out")
file(REMOVE "${MOEBIUS_LEFT_OUT_FILE}")

# Whether this CPU takes kernels that ask for these words; notes them for kernels_left_out.
function(moebius_takes out words)
  set(${out} TRUE PARENT_SCOPE)
  if(NOT cpu_words)
    return()
  endif()
  separate_arguments(words)
  foreach(word IN LISTS words)
    string(REPLACE "!" "" plain "${word}")
    set(found "!${plain}")
    if(plain IN_LIST cpu_words)
      set(found "${plain}")
    endif()
    set_property(GLOBAL APPEND PROPERTY moebius_cpu_words "${found}")
    if(NOT word STREQUAL found)
      set(${out} FALSE PARENT_SCOPE)
      set_property(GLOBAL PROPERTY moebius_left_out TRUE)
    endif()
  endforeach()
endfunction()

# Names of files that match a row, whatever the architecture (the symbol check reads it).
function(moebius_isa_sources out sources)
  set(found "")
  foreach(source IN LISTS sources)
    cmake_path(GET source FILENAME name)
    foreach(row IN LISTS MOEBIUS_KERNEL_FLAGS)
      string(REPLACE "|" ";" cells "${row}")
      list(GET cells 1 pattern)
      if(source MATCHES "/src/kernels/" AND name MATCHES "${pattern}")
        list(APPEND found "${source}")
        break()
      endif()
    endforeach()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

function(moebius_apply_kernel_flags sources)
  foreach(source IN LISTS sources)
    cmake_path(GET source FILENAME name)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/src" OUTPUT_VARIABLE path)
    set(options "$<$<CONFIG:Release>:-Og;-fno-guess-branch-probability;-Wno-maybe-uninitialized>")
    foreach(row IN LISTS MOEBIUS_LEVELS)
      string(REGEX MATCH "^(-O.) (.*)$" whole "${row}")
      set(level "${CMAKE_MATCH_1}")
      if(path MATCHES "${CMAKE_MATCH_2}")
        set(options "$<$<CONFIG:Release>:${level}>")
        break()
      endif()
    endforeach()
    string(REPLACE "$<$<CONFIG:Release>:-O2>" "" options "${options}")  # the build's own
    if(path MATCHES "^kernels/")
      foreach(row IN LISTS MOEBIUS_KERNEL_FLAGS)
        string(REGEX MATCH "^([^|]*)\\|([^|]*)\\|([^|]*)\\|(.*)$" whole "${row}")
        set(arch "${CMAKE_MATCH_1}")
        set(pattern "${CMAKE_MATCH_2}")
        set(words "${CMAKE_MATCH_3}")
        separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_4}")
        if(name MATCHES "${pattern}")
          set(takes FALSE)
          if(arch STREQUAL MOEBIUS_ARCH)
            moebius_takes(takes "${words}")
          endif()
          if(takes)
            list(APPEND options -DMOEBIUS_KERNEL_BODIES ${flags})
            # g++ 12 takes minutes to instrument unrolled intrinsics; the kernel tests watch these
            # files with guard pages around every buffer instead.
            if(MOEBIUS_SANITIZE)
              list(APPEND options -fno-sanitize=all -O2)
            endif()
          endif()
          # Precompiled headers are for units with plain flags.
          set_source_files_properties("${source}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
          break()
        endif()
      endforeach()
    endif()
    # x86-64 ends a program that divides by zero, aarch64 goes on with 0: end it there too, so that the
    # tests of either machine find it.
    if(MOEBIUS_ARCH STREQUAL "aarch64" AND path MATCHES "^(kernels|nn)/" AND NOT MOEBIUS_SANITIZE)
      list(APPEND options -fsanitize=integer-divide-by-zero -fsanitize-undefined-trap-on-error)
    endif()
    set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS "${options}")
  endforeach()
  get_property(left_out GLOBAL PROPERTY moebius_left_out)
  if(left_out)
    get_property(words GLOBAL PROPERTY moebius_cpu_words)
    list(REMOVE_DUPLICATES words)
    list(JOIN words " " words)
    file(WRITE "${MOEBIUS_LEFT_OUT_FILE}" "${words}\n")
  endif()
endfunction()
