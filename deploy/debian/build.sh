#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Debian packages of a finished build in the build folder. Needs debhelper.
# Usage: deploy/debian/build.sh [--build DIR] [--out DIR]
#   --build DIR  a release build (default build/release)
#   --out DIR    where the packages go (default the folder packages of the build)
# DEBFULLNAME and DEBEMAIL name the maintainer; SOURCE_DATE_EPOCH is the date (default: that of the last commit).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

build=$root/build/release out=
while [ $# -gt 0 ]; do
    case $1 in
    --build | --out)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        printf -v "${1#--}" %s "$(realpath -m "$2")"
        shift 2
        ;;
    --help) sed -n '3,7s/^# //p' "$0"; exit 0 ;;
    *) echo "unknown option '$1' (--help lists all)" >&2; exit 2 ;;
    esac
done
out=${out:-$build/packages}
[ -x "$build/bin/forepack" ] || { echo "--build '$build': has no programs, build it first" >&2; exit 2; }
command -v dh >/dev/null || { echo "debhelper is not installed (deploy/packages.sh --deploy)" >&2; exit 1; }

# debhelper writes next to its rules, so it works on a copy in the build folder.
work=$(mktemp -d "$build/debian-XXXXXX")
trap 'rm -rf "$work"' EXIT
stage=$work/forepack
mkdir -p "$stage/debian" "$stage/conf" "$out"
cp -r "$root/deploy/debian/." "$stage/debian/"
rm "$stage/debian/build.sh"
cp "$root/CHANGELOG.md" "$stage/"
cp "$root"/deploy/systemd/conf/* "$stage/conf/"
cp "$root"/deploy/systemd/*.service "$stage/debian/"

version=$("$build/bin/forepack" --version | awk '{ print $2 }')
date=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
maintainer="${DEBFULLNAME:-The Forepack authors} <${DEBEMAIL:-forepack@example.org}>"
sed -i "s/@MAINTAINER@/$maintainer/" "$stage/debian/control"
cat >"$stage/debian/changelog" <<END
forepack ($version-1) unstable; urgency=medium

  * Release $version. CHANGELOG.md lists the changes.

 -- $maintainer  $(date -ud "@$date" -R)
END
if [ -e "$build/bin/libforepack_cuda.so" ]; then
    cat "$stage/debian/control.cuda" >>"$stage/debian/control"
    export FOREPACK_CUDA_FLAG=-pforepack-cuda
else
    rm "$stage/debian/forepack-cuda.install"
fi
rm "$stage/debian/control.cuda"
[ ! -e "$build/../llguidance/libllguidance.so" ] || echo usr/lib/forepack/libllguidance.so >>"$stage/debian/forepack-common.install"

(cd "$stage" && FOREPACK_BUILD=$build SOURCE_DATE_EPOCH=$date dpkg-buildpackage -b -us -uc) >"$work/log" 2>&1 || {
    tail -n 30 "$work/log" >&2
    exit 1
}
rm -f "$out"/forepack*.deb
mv "$work"/forepack*.deb "$out/"
ls "$out"/forepack*.deb
