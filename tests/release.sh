#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a release of a clone with a throwaway key (deploy/release.sh), checks what it holds, and what is refused.
# Expects FOREPACK_SOURCE (repository) and FOREPACK_BUILD (build folder of an optimised build).
set -euo pipefail
fail() {
    echo "FAILED: $*" >&2
    exit 1
}
skip() {
    echo "skipped: $*"
    exit 77
}
for tool in gpg dh protoc git; do command -v $tool >/dev/null || skip "$tool is not installed"; done
[ "$(git -C "$FOREPACK_SOURCE" rev-parse --is-inside-work-tree 2>/dev/null)" = true ] || skip "the source is no git repository"

work=$(mktemp -d "${TMPDIR:-/tmp}/forepack release XXXXXX") # a path with a space, on purpose
GNUPGHOME=$(mktemp -d)                                      # short: the path of the agent's socket has a limit
export GNUPGHOME
trap 'gpgconf --kill all; rm -rf "$work" "$GNUPGHOME"' EXIT
gpg --batch --quiet --passphrase '' --quick-generate-key 'Release <release@example.org>' default default never 2>/dev/null

version=$("$FOREPACK_BUILD/bin/forepack" --version | awk '{ print $2 }')
clone=$work/clone
git clone -q "$FOREPACK_SOURCE" "$clone"
git -C "$clone" config user.name Release
git -C "$clone" config user.email release@example.org
# The present state of the scripts counts, committed or not.
cp "$FOREPACK_SOURCE/deploy/release.sh" "$clone/deploy/"
cp "$FOREPACK_SOURCE"/deploy/debian/* "$clone/deploy/debian/"
git -C "$clone" diff --quiet || git -C "$clone" commit -qam "present scripts"

# release WORDS...: must be refused with exit code 2 or 1 and these words.
refused() {
    local words=$1 code=0
    shift
    "$clone/deploy/release.sh" "$@" >"$work/out.log" 2>"$work/error.log" || code=$?
    [ $code != 0 ] || fail "is not refused: $*"
    grep -q -- "$words" "$work/error.log" || fail "$*: '$(cat "$work/error.log")' does not say '$words'"
    [ ! -e "$work/out" ] || fail "a refused release wrote files"
}
refused "must be three numbers" --version 1.0 --sign-key release@example.org "$work/out"
refused "has no such secret key" --version "$version" --sign-key nobody@example.org "$work/out"
refused "run --prepare first" --version 9.9.9 --sign-key release@example.org "$work/out"
refused "run --prepare first" --version "$version" --sign-key release@example.org "$work/out"
refused "is older than" --prepare --version 0.0.9

"$clone/deploy/release.sh" --prepare --version "$version" >/dev/null || fail "--prepare"
grep -q "^## \[$version\] - 20" "$clone/CHANGELOG.md" || fail "CHANGELOG.md has no section of $version"
refused "not committed" --version "$version" --sign-key release@example.org --build "$FOREPACK_BUILD" "$work/out"
git -C "$clone" add -A
git -C "$clone" commit -qm "release: $version"

# The build folder belongs to another source folder, so it is only packed: FOREPACK_RELEASE_BUILT says that it is finished.
FOREPACK_RELEASE_BUILT=1 "$clone/deploy/release.sh" --version "$version" --sign-key release@example.org --build "$FOREPACK_BUILD" \
    "$work/out" >"$work/release.log" 2>&1 || { tail -n 20 "$work/release.log" >&2; fail "no release"; }
cd "$work/out"
for file in forepack-"$version".tar.gz forepack-"$version"-linux-*.tar.gz forepack-{router,worker,speculator,client,bench,common}_"$version"-1_*.deb \
    RELEASE-NOTES.md SHA256SUMS SHA256SUMS.asc; do
    [ -s "$file" ] || fail "the release has no $file"
done
[ "$(ls | grep -vc '^SHA256SUMS')" = "$(wc -l <SHA256SUMS)" ] || fail "files without a checksum"
gpg --batch --verify SHA256SUMS.asc SHA256SUMS 2>/dev/null || fail "the signature"
sha256sum --check --quiet SHA256SUMS || fail "the checksums"
echo x >>RELEASE-NOTES.md
! sha256sum --check --quiet SHA256SUMS >/dev/null 2>&1 || fail "a changed file has the right checksum"
content=$(tar -tzf forepack-"$version"-linux-*.tar.gz)
grep -q '/bin/forepack-worker$' <<<"$content" || fail "forepack-worker is not in the archive"
content=$(tar -tzf forepack-"$version".tar.gz)
grep -q "^forepack-$version/CMakeLists.txt$" <<<"$content" || fail "the archive of the source"
[ -z "$(git -C "$clone" status --porcelain)" ] || fail "a release changes the work tree"
echo "release: all passed"
