# SPDX-License-Identifier: Apache-2.0
# Sourced by ./moebius and ./test: missing packages, configuring, building with one progress line.
# Everything is said on stderr; stdout belongs to the tool. Expects $root, the repository's folder.
#
# Environment: MOEBIUS_JOBS (parallel compilers), MOEBIUS_SKIP_PACKAGES=1 (never install anything).

say() { printf 'moebius: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Parallel compilers: all cores, but no more than the memory carries (a heavy file takes about 1 GB).
job_count() {
  local cores memory
  cores=$(nproc 2>/dev/null || echo 2)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1000000)}' /proc/meminfo 2>/dev/null)
  if [ -n "$memory" ] && [ "$memory" -lt "$cores" ]; then cores=$memory; fi
  [ "$cores" -ge 1 ] || cores=1
  echo "${MOEBIUS_JOBS:-$cores}"
}

# listed_packages GROUP... -> lines "PACKAGE required|optional" that apply to this machine
listed_packages() {
  local arch
  arch=$(dpkg --print-architecture 2>/dev/null)
  awk -v groups=" $* " -v arch="$arch" '
    /^[ \t]*(#|$)/ { next }
    index(groups, " " $1 " ") {
      kind = "required"
      for (i = 3; i <= NF; ++i) {
        if ($i == "optional") kind = "optional"
        else if ($i ~ /^arch=/ && substr($i, 6) != arch) next
      }
      print $2, kind
    }' "$root/scripts/packages.txt"
}

installed() {
  dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed
}

# chosen_package "A|B" -> the first that is installed or that the distribution has; the last where none is known
chosen_package() {
  local name last=""
  for name in ${1//|/ }; do
    last=$name
    if [ "$name" = "$1" ] || installed "$name" || apt-cache show "$name" >/dev/null 2>&1; then break; fi
  done
  echo "$last"
}

# as_root COMMAND...: directly when root, else with sudo (which may ask, but only on a terminal)
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif [ -t 0 ]; then
    sudo "$@"
  else
    sudo -n "$@"
  fi
}

# ensure_packages GROUP...: installs what is missing, and says so
ensure_packages() {
  local name kind missing="" wanted="" log
  [ "${MOEBIUS_SKIP_PACKAGES:-0}" != 1 ] || return 0
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this is not Debian or Ubuntu; going on with what is installed. Needed:" \
      $(listed_packages "$@" | cut -d' ' -f1)
    return 0
  fi
  while read -r name kind; do
    installed "$(chosen_package "$name")" || missing="$missing $name:$kind"
  done < <(listed_packages "$@")
  [ -n "$missing" ] || return 0

  # Optional packages that were looked for before and do not exist here are not looked for again.
  mkdir -p "$root/build"
  for name in $missing; do
    kind=${name#*:}
    name=${name%%:*}
    if [ "$kind" = optional ] && grep -qsx "$name" "$root/build/unavailable_packages"; then continue; fi
    wanted="$wanted $name:$kind"
  done
  [ -n "$wanted" ] || return 0

  if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
    case "$wanted " in
      *:required\ *) ;;
      *) say "going on without$(printf ' %s' $wanted | sed 's/|[^ :]*//g; s/:[a-z]*//g') (not root, no sudo)"; return 0 ;;
    esac
    say "these packages are missing, and this user can neither be root nor use sudo. As root, run:"
    die "  apt-get install$(printf ' %s' $wanted | sed 's/|[^ :]*//g; s/:[a-z]*//g')   (or set MOEBIUS_SKIP_PACKAGES=1)"
  fi
  say "installing missing packages with apt-get:$(printf ' %s' $wanted | sed 's/|[^ :]*//g; s/:[a-z]*//g')"
  log=$root/build/packages.log
  if ! as_root apt-get -o DPkg::Lock::Timeout=300 update >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    say "apt-get update failed (log: $log); trying the lists that are there"
  fi
  missing=""
  for name in $wanted; do
    kind=${name#*:}
    name=${name%%:*}
    if [ "$kind" = optional ] && ! apt-cache show "$name" >/dev/null 2>&1; then
      say "$name does not exist in this distribution; what needs it is skipped"
      echo "$name" >>"$root/build/unavailable_packages"
      continue
    fi
    missing="$missing $(chosen_package "$name")" # the lists are fresh now
  done
  [ -n "$missing" ] || return 0
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $missing >>"$log" 2>&1 ||
    { tail -n 15 "$log" >&2; die "could not install:$missing (log: $log)"; }
}

# show_progress LABEL: turns ninja's "[done/total] ..." lines on stdin into one line on a terminal,
# or into a line per quarter elsewhere
show_progress() {
  local label=$1 line done total quarter last=0
  while IFS= read -r line; do
    case $line in
      \[[0-9]*/[0-9]*\]*) ;;
      *) continue ;;
    esac
    line=${line#\[}
    line=${line%%\]*}
    done=${line%/*}
    total=${line#*/}
    if [ -t 2 ]; then
      printf '\r\033[Kmoebius: %s  %s of %s' "$label" "$done" "$total" >&2
    else
      quarter=$((done * 4 / total))
      if [ "$quarter" -gt "$last" ]; then
        last=$quarter
        say "$label  $done of $total"
      fi
    fi
  done
  [ ! -t 2 ] || printf '\r\033[K' >&2
}

# announce_first_build: says how long it takes. CPU seconds go with the number of files; the longest unit and linking use one core.
announce_first_build() {
  local files jobs
  files=$(find "$root/src" -name '*.cpp' | wc -l)
  jobs=$(job_count)
  say "the first build takes about $(((files * 6 / 10 / jobs + 40 + 59) / 60)) min on $jobs cores; later calls start at once"
}

# build_preset PRESET "CMAKE OPTIONS" TARGET...: configures when needed and builds; the log stays in the build folder
build_preset() {
  local preset=$1 options=$2 dir=$root/build/$1 log start=$SECONDS status targets fresh=""
  shift 2
  mkdir -p "$dir" || die "cannot create $dir"
  log=$dir/build.log
  # A clone that was renamed or copied with its build: CMake takes no build folder of another source folder.
  if [ -f "$dir/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$dir/CMakeCache.txt"; then fresh=--fresh; fi
  if [ ! -f "$dir/build.ninja" ] || [ -n "$options$fresh" ]; then
    (cd "$root" && cmake $fresh --preset "$preset" $options) >"$log" 2>&1 ||
      { tail -n 25 "$log" >&2; say "configuring preset $preset failed (log: $log)"; return 1; }
  fi
  targets=${*:+--target $*}
  (cd "$root" && NINJA_STATUS='[%f/%t] ' cmake --build "$dir" -j "$(job_count)" $targets 2>&1) |
    tee "$log" | show_progress "building ($preset)"
  status=${PIPESTATUS[0]}
  if [ "$status" != 0 ]; then
    grep -A 25 -m 1 -E '^FAILED|error' "$log" >&2 || tail -n 25 "$log" >&2
    say "building preset $preset failed (log: $log)"
    return 1
  fi
  say "built preset $preset in $((SECONDS - start)) s"
}
