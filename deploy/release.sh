#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a release in two steps.
# Usage: deploy/release.sh --prepare --version V
#        deploy/release.sh --version V --sign-key KEY [--build DIR] OUT
#   --prepare       sets the version in CMakeLists.txt and CHANGELOG.md, and stores the protocol under
#                   tests/data/release-V, for a commit that you review
#   --version V     three numbers, such as 0.2.0
#   --sign-key KEY  key of gpg that signs the checksums: fingerprint or address
#   --build DIR     build folder (default build/release-V); programs that are up to date are not built again
#   OUT             folder to create: source and program archives, Debian packages, the GPU kit if the CUDA toolkit is
#                   installed, release notes, SHA256SUMS and its signature SHA256SUMS.asc
# The second step needs a clean work tree. It ends with 0 only if the signature and all checksums are right.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
usage() {
    echo "$* (--help lists all options)" >&2
    exit 2
}
fail() {
    echo "$*" >&2
    exit 1
}

prepare=0 version='' sign_key='' build='' out=''
while [ $# -gt 0 ]; do
    case $1 in
    --version | --sign-key | --build)
        [ $# -gt 1 ] || usage "$1: needs a value"
        name=${1#--}
        printf -v "${name//-/_}" %s "$2"
        shift 2
        ;;
    --prepare) prepare=1 && shift ;;
    --help) sed -n '3,13s/^# //p' "$0" && exit 0 ;;
    -*) usage "unknown option '$1'" ;;
    *) [ -z "$out" ] || usage "two folders: '$out' and '$1'" && out=$(realpath -m "$1") && shift ;;
    esac
done
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || usage "--version '$version': must be three numbers, such as 0.2.0"
has=$(sed -n 's/^project(forepack VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
cd "$root"

if [ $prepare = 1 ]; then
    [ -z "$out$sign_key$build" ] || usage "--prepare: only takes --version"
    ! grep -q "^## \[$version\]" CHANGELOG.md || usage "--version $version: CHANGELOG.md has this release"
    [ "$(printf '%s\n' "$has" "$version" | sort -V | tail -n 1)" = "$version" ] || usage "--version $version: is older than $has"
    sed -i "s/^project(forepack VERSION [0-9.]*/project(forepack VERSION $version/" CMakeLists.txt
    sed -i "s/^## \[Unreleased\]$/&\n\n## [$version] - $(date -u +%F)/" CHANGELOG.md
    tests/compatibility.py --record "tests/data/release-$version"
    echo "prepared $version: review the changes, commit them, then run the second step"
    exit 0
fi

# ---- checks, before anything is built ----

[ -n "$out" ] || usage "OUT: is required"
[ -n "$sign_key" ] || usage "--sign-key: is required"
[ ! -e "$out" ] || usage "OUT '$out': exists"
gpg --batch --list-secret-keys "$sign_key" >/dev/null 2>&1 || usage "--sign-key '$sign_key': gpg has no such secret key"
[ "$has" = "$version" ] || usage "--version $version: CMakeLists.txt has $has; run --prepare first"
notes=$(awk -v head="## [$version]" 'index($0, head) == 1 { on = 1; next } /^## / { on = 0 } on' CHANGELOG.md)
[ -n "$notes" ] || usage "--version $version: CHANGELOG.md has no section of it; run --prepare first"
[ -z "$(git status --porcelain)" ] || fail "the work tree has changes that are not committed"
tests/compatibility.py

# ---- build ----

build=$(realpath -m "${build:-build/release-$version}")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
if [ -z "${FOREPACK_RELEASE_BUILT:-}" ]; then # set by tests/release.sh: packs a build of another folder
    [ -e "$build/CMakeCache.txt" ] || cmake --preset release -B "$build" -DFOREPACK_TESTS=OFF >&2
    programs=(forepack forepack-router forepack-worker forepack-speculator forepack-bench forepack-sim)
    cmake --build "$build" --target "${programs[@]}" man_pages completions >&2
fi
[ "$("$build/bin/forepack" --version | awk '{ print $2 }')" = "$version" ] || fail "--build '$build': is not version $version"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
printf '%s\n' "$notes" | sed '1{/^$/d}' >"$out/RELEASE-NOTES.md"
git archive --prefix="forepack-$version/" HEAD | gzip -9n >"$out/forepack-$version.tar.gz"

# The same content gives the same archive.
tree=forepack-$version-linux-$(uname -m)
cmake --install "$build" --prefix "$work/$tree" --strip >&2
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$tree" |
    gzip -9n >"$out/$tree.tar.gz"
deploy/debian/build.sh --build "$build" --out "$out" >&2

if [ -n "${FOREPACK_RELEASE_BUILT:-}" ]; then
    echo "no GPU kit: nothing is built" >&2
elif command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    bench/gpu-kit.sh --out "$work/kit" --build "$build-kit" >&2
    mv "$work/kit.tar.gz" "$out/forepack-gpu-kit-$version.tar.gz"
else
    echo "nvcc is not installed: the release has no GPU kit" >&2
fi

# ---- checksums and signature ----

cd "$out"
sha256sum -- * >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" .
gpg --batch --local-user "$sign_key" --armor --detach-sign SHA256SUMS
gpg --batch --verify SHA256SUMS.asc SHA256SUMS 2>/dev/null || fail "the signature does not verify"
sha256sum --check --quiet SHA256SUMS
echo "release $version: $(ls | wc -l) files in $out; tag it: git tag -s v$version"
