#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a separate folder, moves it, runs a cluster from there, and builds the packages.
# Expects FOREPACK_SOURCE (repository) and FOREPACK_BUILD (build folder of an optimised build).
set -euo pipefail

work=$(mktemp -d "${TMPDIR:-/tmp}/forepack package XXXXXX") # a path with a space, on purpose
cluster=
guided=()
clean_up() {
    [ -z "$cluster" ] || { kill "$cluster" 2>/dev/null && wait "$cluster" || true; }
    rm -rf "$work"
}
trap clean_up EXIT
fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# ---- an installed tree ----

cmake --install "$FOREPACK_BUILD" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/installed"
bin=$work/installed/bin
version=$(sed -n 's/^project(forepack VERSION \([0-9.]*\).*/\1/p' "$FOREPACK_SOURCE/CMakeLists.txt")
for program in forepack forepack-bench forepack-router forepack-worker forepack-speculator; do
    [[ "$("$bin/$program" --version)" = "$program $version (commit "* ]] || fail "$program --version: $("$bin/$program" --version)"
    [ -s "$work/installed/share/man/man1/$program.1.gz" ] || fail "no man page of $program"
    grep -q "^$program:" "$work/installed/share/bash-completion/completions/$program" || fail "no completion of $program"
done
[ -s "$work/installed/share/man/man1/forepack-up.1.gz" ] || fail "no man page of forepack up"
for page in "$work"/installed/share/man/man1/*.gz; do # one line of NAME, as whatis and lintian read it
    name=$(basename "$page" .1.gz)
    grep -qE "^$name - [[:alnum:]]" <<<"$(zcat "$page" | grep -A 1 '^\.SH NAME' | sed 's/\\//g')" || fail "the man page of $name"
    ! zcat "$page" | grep -F '(null)' || fail "an option without a text: $name"
done
for file in zsh/vendor-completions/_forepack fish/vendor_completions.d/forepack.fish; do
    [ -s "$work/installed/share/$file" ] || fail "no $file"
done
[ -s "$work/installed/share/forepack/shapes/llama-3.1-8b.json" ] || fail "no shapes"

demo=$work/installed/share/forepack/demo-model
# Structured output, if llguidance was installed before the build was: the library and its licence belong together.
if [ -e "$FOREPACK_BUILD/../llguidance/libllguidance.so" ]; then
    [ -s "$work"/installed/lib*/forepack/libllguidance.so ] || fail "llguidance is not installed"
    grep -q "MIT License" "$work"/installed/share/doc/forepack/llguidance.LICENSE || fail "no licence of llguidance"
    guided=(--guided-regex 'yes|no')
fi
[ -x "$work/installed/share/forepack/llguidance.sh" ] || fail "no llguidance.sh"

tokens() { jq -e '.token_ids | length' "$1"; }
"$bin/forepack" generate --model "$demo/main" --prompt Hello --max-tokens 3 --ignore-eos --json >"$work/alone.json"
[ "$(tokens "$work/alone.json")" = 3 ] || fail "generate --model: $(cat "$work/alone.json")"

port=$((20000 + RANDOM % 12000))
"$bin/forepack" up --port $port --http-port -1 --threads 1 >"$work/up.log" 2>&1 </dev/null &
cluster=$!
for _ in $(seq 1200); do
    ! grep -q ^ready: "$work/up.log" || break
    kill -0 "$cluster" 2>/dev/null || break
    sleep 0.1
done
grep -q ^ready: "$work/up.log" || { cat "$work/up.log" >&2; fail "forepack up does not start from an installed tree"; }
"$bin/forepack" generate --server 127.0.0.1:$port --prompt Hello --max-tokens 3 --ignore-eos --json >"$work/answer.json"
[ "$(tokens "$work/answer.json")" = 3 ] || fail "generate: $(cat "$work/answer.json")"
if [ ${#guided[@]} -gt 0 ]; then
    "$bin/forepack" generate --server 127.0.0.1:$port --prompt Hello "${guided[@]}" --json >"$work/guided.json" || fail "a guided answer"
    jq -e '.text == "yes" or .text == "no"' "$work/guided.json" >/dev/null || fail "a guided answer: $(cat "$work/guided.json")"
fi
kill -TERM "$cluster"
wait "$cluster" || fail "forepack up ended with $?"
cluster=

# ---- packages ----

command -v dh >/dev/null || { echo "skipped: debhelper is not installed, no package was built"; exit 77; }
"$FOREPACK_SOURCE/deploy/debian/build.sh" --build "$FOREPACK_BUILD" --out "$work/packages" >"$work/build.log" 2>&1 ||
    { cat "$work/build.log" >&2; fail "no packages"; }
# holds PACKAGE FILE...: the package has these files.
holds() {
    local package=$1 content file
    shift
    content=$(dpkg-deb -c "$work/packages/${package}"_*.deb | awk '{ print $6 }')
    for file; do grep -qx "\./$file" <<<"$content" || fail "$file is not in $package"; done
}
depends() { dpkg-deb -f "$work/packages/$1"_*.deb Depends Recommends; }
for part in router worker speculator; do holds forepack-$part usr/bin/forepack-$part usr/share/man/man1/forepack-$part.1.gz; done
holds forepack-router lib/systemd/system/forepack-router.service etc/forepack/router.conf
holds forepack-worker lib/systemd/system/forepack-{worker,group}@.service etc/forepack/{worker-main.conf,group-main.conf,group-main.env}
holds forepack-speculator lib/systemd/system/forepack-speculator@.service etc/forepack/speculator-main.conf
holds forepack-client usr/bin/forepack usr/share/man/man1/forepack{,-up,-keys-add}.1.gz usr/share/bash-completion/completions/forepack \
    usr/share/doc/forepack-client/{copyright,changelog.gz,changelog.Debian.gz}
holds forepack-bench usr/bin/forepack-{bench,sim} usr/share/man/man1/forepack-bench-serve.1.gz
holds forepack-common usr/share/forepack/demo-model/main/config.json usr/lib/sysusers.d/forepack-common.conf \
    usr/lib/tmpfiles.d/forepack-common.conf usr/share/doc/forepack/docs/operating.md
! grep -E 'openmpi|python' <<<"$(depends forepack-client; depends forepack-router | grep ^Depends)" || fail "dependencies that should not be"
grep -q libgrpc <<<"$(depends forepack-client)" || fail "dependencies of forepack-client: $(depends forepack-client)"
for deb in "$work"/packages/*.deb; do
    for file in $(dpkg-deb -I "$deb" conffiles 2>/dev/null); do
        [[ $file == /etc/forepack/* ]] || fail "${deb##*/}: a configuration file outside /etc/forepack: $file"
    done
done
command -v lintian >/dev/null || { echo "skipped: lintian is not installed, the packages were not checked"; exit 77; }
lintian --allow-root --fail-on error "$work"/packages/*.deb >"$work/lintian.log" 2>&1 || { cat "$work/lintian.log" >&2; fail lintian; }
echo "packaging: all passed"
