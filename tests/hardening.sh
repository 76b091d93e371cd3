#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every program is position-independent, with read-only relocations that are bound at start, a stack that is not
# executable, stack protectors and, in optimised builds, checked library calls; and every C file of the product was
# compiled with the hardening flags. Usage: tests/hardening.sh BUILD_FOLDER PROGRAM...
set -euo pipefail
build=$1
shift
if ! type readelf jq >/dev/null 2>&1; then
    echo "hardening: needs readelf (binutils) and jq"
    exit 77
fi
failures=0
complain() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}
# has PROGRAM TEXT WHAT REGEX: a line of the text matches.
has() { grep -qE "$4" <<<"$2" || complain "$1: no $3"; }
lacks() { if grep -qE "$4" <<<"$2"; then complain "$1: $3"; fi; }

optimised=$(jq -r '.[] | select(.file | endswith("/lib/base/log.c")) | .command' "$build/compile_commands.json" |
    grep -c -- -D_FORTIFY_SOURCE || true)
for program in "$@"; do
    header=$(readelf -hW "$program") segments=$(readelf -lW "$program") dynamic=$(readelf -dW "$program")
    symbols=$(readelf --dyn-syms -W "$program")
    has "$program" "$header" "position-independent code" 'Type: +DYN'
    has "$program" "$segments" "read-only relocations" GNU_RELRO
    has "$program" "$segments" "stack without execution" 'GNU_STACK .* RW +0x'
    lacks "$program" "$segments" "a segment is writable and executable" 'LOAD .* RWE '
    has "$program" "$dynamic" "binding at start" 'BIND_NOW|FLAGS_1.* NOW'
    lacks "$program" "$dynamic" "relocations in the code" TEXTREL
    has "$program" "$symbols" "stack protector" __stack_chk_fail
    if [ "$optimised" != 0 ]; then has "$program" "$symbols" "checked library calls" '__[a-z]+_chk'; fi
done

# The CPU kernels are the exception: kernels/CMakeLists.txt. Not part of the product: test programs, oracles, and the library
# that bench/soak.sh loads.
flags=(-fPIE -fstack-protector-strong -fstack-clash-protection)
[ "$(uname -m)" != x86_64 ] || flags+=(-fcf-protection)
[ "$optimised" = 0 ] || flags+=(-D_FORTIFY_SOURCE)
jq -r '.[] | select((.file | test("/(tests|kernels/cuda)/|/kernels/cpu/kernels[.]c$|[.](cu|cpp|cc)$")) or
        (.command | test("CMakeFiles/(check_|fuzz_|fake_|heap_bytes|forepack_cuda_emul)")) | not) | "\(.file) \(.command)"' \
    "$build/compile_commands.json" >"$build/hardening.txt"
files=$(wc -l <"$build/hardening.txt")
[ "$files" -gt 100 ] || complain "compile_commands.json has $files files of the product"
for flag in "${flags[@]}"; do
    without=$(grep -v -- " $flag" "$build/hardening.txt" | cut -d' ' -f1 || true)
    [ -z "$without" ] || complain "compiled without $flag: $without"
done
[ $failures = 0 ] || exit 1
echo "hardening: $# programs and $files files passed"
