# SPDX-License-Identifier: Apache-2.0
# moebius_bundle(OUT SOURCES): compiles small files several at a time, because most of their time goes into headers and
# templates that they share. Preset clang keeps every file to itself, so that one of the builds notices a missing include
# (a stage of ./test --full).
#
# A bundle is a generated file of #include lines; its files come from one folder and have the same flags. Where a name in
# a file's unnamed namespace is one of another file of the folder, or of a header that it does not include, the file is
# listed here and compiled by itself (check_names.py finds the first kind; it reads both lists).
set(MOEBIUS_BUNDLE_FOLDERS "^(api|base|runtime|quant|checkpoint|device|nn|model|engine|text|quantize|report|serve|apps)/")
set(MOEBIUS_UNBUNDLED_FILES
)
set(MOEBIUS_BUNDLE_FILES 30)  # at most: no bundle takes more than 30 s of one core

function(moebius_bundle out sources)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT MOEBIUS_FUZZ)
    set(${out} "${sources}" PARENT_SCOPE)
    return()
  endif()
  set(result "")
  set(keys "")
  foreach(source IN LISTS sources)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/src" OUTPUT_VARIABLE path)
    if(NOT path MATCHES "${MOEBIUS_BUNDLE_FOLDERS}" OR path IN_LIST MOEBIUS_UNBUNDLED_FILES)
      list(APPEND result "${source}")
      continue()
    endif()
    cmake_path(GET path PARENT_PATH folder)
    get_source_file_property(options "${source}" COMPILE_OPTIONS)
    if(NOT options)
      set(options "")
    endif()
    string(MAKE_C_IDENTIFIER "${folder}_${options}" key)
    list(APPEND keys "${key}")
    list(APPEND files_${key} "${source}")
    set(options_${key} "${options}")
    set(folder_${key} "${folder}")
  endforeach()
  list(REMOVE_DUPLICATES keys)
  foreach(key IN LISTS keys)
    list(LENGTH files_${key} count)
    math(EXPR bundles "(${count} + ${MOEBIUS_BUNDLE_FILES} - 1) / ${MOEBIUS_BUNDLE_FILES}")
    math(EXPR size "(${count} + ${bundles} - 1) / ${bundles}")
    foreach(number RANGE 1 ${bundles})
      list(SUBLIST files_${key} 0 ${size} files)
      list(REMOVE_ITEM files_${key} ${files})
      list(TRANSFORM files PREPEND "#include \"")
      list(TRANSFORM files APPEND "\"\n")
      list(JOIN files "" text)
      string(MAKE_C_IDENTIFIER "${folder_${key}}" name)
      string(REGEX REPLACE "[^O0-9W]" "" level "${options_${key}}")
      set(bundle "${PROJECT_BINARY_DIR}/bundles/${name}_${level}_${number}.cpp")
      file(CONFIGURE OUTPUT "${bundle}" CONTENT "${text}" @ONLY)
      set_source_files_properties("${bundle}" PROPERTIES COMPILE_OPTIONS "${options_${key}}")
      list(APPEND result "${bundle}")
    endforeach()
  endforeach()
  set(${out} "${result}" PARENT_SCOPE)
endfunction()
