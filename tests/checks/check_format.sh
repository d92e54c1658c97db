#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formatting check:  check_format.sh ROOT     exit 0 in order, 1 not, 77 skipped (no clang-format 14)
# Versions of clang-format disagree in details, so exactly one is asked. scripts/format.sh mends what this finds.
set -u
root=$1
for tool in clang-format-14 clang-format; do
  if command -v "$tool" >/dev/null && "$tool" --version | grep -q 'version 14\.'; then break; fi
  tool=""
done
if [ -z "$tool" ]; then
  echo "skipped: clang-format 14 is not installed"
  exit 77
fi
cd "$root" || exit 1
folders=""
for folder in src include plugins tests bench; do [ ! -d "$folder" ] || folders="$folders $folder"; done
find $folders \( -name '*.cpp' -o -name '*.h' -o -name '*.c' \) -print0 |
  xargs -0 -r "$tool" --dry-run --Werror 2>&1 | grep -E '^[^ ].*(error|warning):' | cut -d: -f1 | sort | uniq -c |
  awk '{ print $2 ": " $1 " places differ from clang-format"; bad = 1 } END { exit bad }'
