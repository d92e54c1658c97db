# SPDX-License-Identifier: Apache-2.0
# Run by the build: writes OUTPUT, a source file with the documents of FOLDER (documents.h). The page's policy names its own
# script and style by SHA-256, so nothing else of a page can run.
function(to_base64 hex out)
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  set(text "")
  string(LENGTH "${hex}" length)  # 64: ten groups of three bytes, and two bytes
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${hex}" ${at} 6 group)
    string(LENGTH "${group}" size)
    set(pad "")
    while(size LESS 6)
      string(APPEND group "00")
      string(APPEND pad "=")
      math(EXPR size "${size} + 2")
    endwhile()
    foreach(shift 18 12 6 0)
      math(EXPR digit "(0x${group} >> ${shift}) & 63")
      string(SUBSTRING "${digits}" ${digit} 1 digit)
      string(APPEND quad "${digit}")
    endforeach()
    string(LENGTH "${pad}" drop)
    math(EXPR keep "4 - ${drop}")
    string(SUBSTRING "${quad}" 0 ${keep} quad)
    string(APPEND text "${quad}${pad}")
    set(quad "")
    math(EXPR at "${at} + 6")
  endwhile()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

# hash_of(TAG OUT): of what stands between <TAG> and </TAG>, once in the page
function(hash_of tag out)
  string(FIND "${page}" "<${tag}>" begin)
  string(FIND "${page}" "</${tag}>" end)
  if(begin LESS 0 OR end LESS begin)
    message(FATAL_ERROR "page.html: expected one <${tag}> without attributes")
  endif()
  string(LENGTH "<${tag}>" skip)
  math(EXPR begin "${begin} + ${skip}")
  math(EXPR length "${end} - ${begin}")
  string(SUBSTRING "${page}" ${begin} ${length} text)
  string(SHA256 hex "${text}")
  to_base64("${hex}" base64)
  set(${out} "'sha256-${base64}'" PARENT_SCOPE)
endfunction()

file(READ "${FOLDER}/page.html" page)
# The parts of the page stand where it names them.
file(GLOB parts RELATIVE "${FOLDER}" "${FOLDER}/page*.css" "${FOLDER}/page*.js")
foreach(part ${parts})
  string(FIND "${page}" "@${part}@\n" place)
  if(place LESS 0)
    message(FATAL_ERROR "page.html: expected a line @${part}@")
  endif()
  file(READ "${FOLDER}/${part}" text)
  string(REPLACE "@${part}@\n" "${text}" page "${page}")
endforeach()
file(READ "${FOLDER}/openapi.json" openapi)
hash_of(script script)
hash_of(style style)
string(SHA256 tag "${page}")
string(SUBSTRING "${tag}" 0 32 tag)
set(policy "default-src 'none'; connect-src 'self'; img-src data:; script-src ${script}; style-src ${style}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
file(WRITE "${OUTPUT}" "// Written by cmake/embed.cmake.
#include \"serve/documents.h\"
namespace moebius {
std::string_view page_html() { return R\"MOEBIUS(${page})MOEBIUS\"; }
std::string_view openapi_json() { return R\"MOEBIUS(${openapi})MOEBIUS\"; }
std::string_view page_tag() { return \"${tag}\"; }
std::string_view page_policy() { return \"${policy}\"; }
}  // namespace moebius
")
