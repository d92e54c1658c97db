#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The examples continue a text as the tool does:  check_generate.sh MODEL TOOL EXAMPLE...
set -eu
model=$1 tool=$2
shift 2
text="It was a dark"
expected=$("$tool" run "$model" -p "$text" -n 24 --temp 0 --quiet)
for example in "$@"; do
  said=$("$example" "$model" "$text")
  [ "$said" = "$expected" ] || { printf '%s says:\n%s\nexpected:\n%s\n' "$example" "$said" "$expected"; exit 1; }
  if "$example" "$model/none" "$text" >/dev/null 2>&1; then echo "$example takes a folder that is not there"; exit 1; fi
done
