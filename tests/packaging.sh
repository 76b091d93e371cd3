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

command -v dpkg-shlibdeps >/dev/null || { echo "skipped: dpkg-shlibdeps is not installed, no .deb was built"; exit 77; }
(cd "$FOREPACK_BUILD" && cpack -B "$work/packages") >"$work/cpack.log" 2>&1 || { cat "$work/cpack.log" >&2; fail cpack; }
deb=$(echo "$work"/packages/forepack_*.deb)
dpkg-deb -c "$deb" >"$work/content"
for file in bin/forepack bin/forepack-router share/forepack/demo-model/main/config.json share/man/man1/forepack.1.gz share/bash-completion/completions/forepack; do
    grep -q "/usr/$file$" "$work/content" || fail "$file is not in ${deb##*/}"
done
depends=$(dpkg-deb -f "$deb" Depends)
[[ $depends == *libgrpc* ]] || fail "dependencies of the package: $depends"
tar -tzf "$work/packages/forepack-$version-linux-$(uname -m).tar.gz" >"$work/content"
grep -q '/bin/forepack-worker$' "$work/content" || fail "forepack-worker is not in the archive"
echo "packaging: all passed"
