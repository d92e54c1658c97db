#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks the libraries the project needs for another architecture into build/sysroot-ARCH:
#   scripts/make_sysroot.sh amd64|arm64
# Nothing is installed and nothing of the system's package state changes: apt works on private lists,
# the packages are downloaded and unpacked. Done once; a change of scripts/packages.txt does it again.
# MOEBIUS_CROSS_MIRROR: the mirror to use where this system's own does not carry ARCH (Ubuntu's two do not).
set -eu
root=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")/.." && pwd -P)
. "$root/scripts/setup.sh"
arch=${1:?usage: make_sysroot.sh amd64|arm64}
sysroot=$root/build/sysroot-$arch
state=$root/build/apt-$arch
[ ! -e "$sysroot/.complete" ] || [ "$root/scripts/packages.txt" -nt "$sysroot/.complete" ] || exit 0

rm -rf "$sysroot" "$state"
mkdir -p "$sysroot" "$state"/{lists/partial,archives/partial,sources.d,debs}
: >"$state/status"
sources=(-o "Dir::Etc::SourceList=/etc/apt/sources.list" -o "Dir::Etc::SourceParts=/etc/apt/sources.list.d")
if [ -n "${MOEBIUS_CROSS_MIRROR:-}" ]; then
  codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
  components=main
  grep -q '^ID=ubuntu' /etc/os-release && components="main universe"
  echo "deb $MOEBIUS_CROSS_MIRROR $codename $components" >"$state/sources.list"
  sources=(-o "Dir::Etc::SourceList=$state/sources.list" -o "Dir::Etc::SourceParts=$state/sources.d")
fi
apt_options=(-o "APT::Architecture=$arch" -o "APT::Architectures::=$arch" -o "Dir::State=$state" -o "Dir::State::status=$state/status"
  -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state" -o "APT::Sandbox::User=" -o "Debug::NoLocking=1" "${sources[@]}")

say "fetching libraries for $arch into build/sysroot-$arch"
apt-get "${apt_options[@]}" update >"$state/log" 2>&1 || { tail -n 5 "$state/log" >&2; die "no package lists for $arch"; }
wanted=$(listed_packages build test | while read -r name _; do chosen_package "$name"; done | grep -e '-dev$')
# Of everything these would pull in, only their own libraries and those of libedit: C and C++ come with the cross-compiler.
families=$(echo "$wanted" | sed 's/-dev$//; s/[0-9.]*$//' | paste -sd'|')\|libbsd\|libmd\|libtinfo
packages=$(apt-get "${apt_options[@]}" install -s --no-install-recommends $wanted 2>>"$state/log" |
  awk '$1 == "Inst" {print $2}' | sed 's/:.*//' | grep -E "^($families)")
(cd "$state/debs" && apt-get "${apt_options[@]}" download $packages) >>"$state/log" 2>&1 ||
  { tail -n 5 "$state/log" >&2; die "cannot download $packages for $arch"; }
for deb in "$state"/debs/*.deb; do dpkg -x "$deb" "$sysroot"; done
touch "$sysroot/.complete"
