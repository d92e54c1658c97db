#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats every source file in place with clang-format 14 (the version the check asks).
set -eu
cd -- "$(dirname -- "$(readlink -f -- "$0")")/.."
tool=clang-format-14
command -v $tool >/dev/null || tool=clang-format
folders=""
for folder in src include plugins tests bench; do [ ! -d "$folder" ] || folders="$folders $folder"; done
find $folders \( -name '*.cpp' -o -name '*.h' -o -name '*.c' \) -print0 | xargs -0 -r "$tool" -i
